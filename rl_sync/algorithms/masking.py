"""Reducing per-token values under a mask to one number, over global counts.

Each reduction is a sum over a constant of the whole batch, so a microbatch may reduce its own rows
with the batch's constant, and the results add up to the whole batch's.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Mask = Bool[Array, "B T"] | Float[Array, "B T"]


def masked_sum(values: Float[Array, "B T"], mask: Mask) -> Float[Array, ""]:
    """Σ values where the mask is true; what stands elsewhere, even NaN, does not matter."""
    return jnp.sum(jnp.where(mask, values, 0.0))


def token_mean(
    values: Float[Array, "B T"], mask: Mask, token_count: Float[Array, ""] | None = None
) -> Float[Array, ""]:
    """Mean over all tokens of all rows: Σ values / Σ mask. Long rows weigh more.

    Args:
      token_count: the denominator, when `values` are only some rows of a batch; Σ mask when left
        out. A count of zero counts as one.
    """
    count = jnp.sum(mask) if token_count is None else token_count
    return masked_sum(values, mask) / jnp.maximum(count, 1)


def sequence_mean(
    values: Float[Array, "B T"], mask: Mask, row_count: Float[Array, ""] | float | None = None
) -> Float[Array, ""]:
    """Mean over rows of each row's token mean. Every row weighs the same.

    Args:
      row_count: the denominator, when `values` are only some rows of a batch; B when left out.
    """
    lengths = jnp.maximum(jnp.sum(mask, axis=-1), 1)
    means = jnp.sum(jnp.where(mask, values, 0.0), axis=-1) / lengths
    return jnp.sum(means) / (values.shape[0] if row_count is None else row_count)


def sequence_sum_mean(
    values: Float[Array, "B T"], mask: Mask, row_count: Float[Array, ""] | float | None = None
) -> Float[Array, ""]:
    """Mean over rows of each row's token sum.

    Args:
      row_count: the denominator, when `values` are only some rows of a batch; B when left out.
    """
    return masked_sum(values, mask) / (values.shape[0] if row_count is None else row_count)
