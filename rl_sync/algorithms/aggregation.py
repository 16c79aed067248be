"""Reductions of per-token values under a mask to one number, with global counts as denominators.

Each reduction divides a sum by a constant of the whole batch. So a microbatch can reduce its own
rows with the batch's constant, and the results of all microbatches add up to the batch's result.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from rl_sync.algorithms.masking import Mask, masked_sum
from rl_sync.algorithms.sequences import Sequences, lengths


def token_mean(
    values: Float[Array, "B T"], mask: Mask, token_count: Float[Array, ""] | None = None
) -> Float[Array, ""]:
    """Mean over all tokens of all sequences: Σ values / Σ mask. Long sequences weigh more.

    Args:
      token_count: the denominator, when `values` are only some rows of a batch; Σ mask when left
        out. A count of zero counts as one.
    """
    count = jnp.sum(mask) if token_count is None else token_count
    return masked_sum(values, mask) / jnp.maximum(count, 1)


def sequence_mean(
    values: Float[Array, "B T"],
    mask: Mask,
    sequence_count: Float[Array, ""] | float | None = None,
    sequences: Sequences = None,
) -> Float[Array, ""]:
    """Mean over sequences of each sequence's token mean. Every sequence weighs the same.

    Args:
      sequence_count: the denominator, when `values` are only some rows of a batch; B when left out.
      sequences: see `rl_sync.algorithms.sequences`.
    """
    return sequence_sum_mean(values / lengths(mask, sequences), mask, sequence_count)


def sequence_sum_mean(
    values: Float[Array, "B T"], mask: Mask, sequence_count: Float[Array, ""] | float | None = None
) -> Float[Array, ""]:
    """Mean over sequences of each sequence's token sum.

    Args:
      sequence_count: the denominator, when `values` are only some rows of a batch; B when left out.
    """
    count = values.shape[0] if sequence_count is None else sequence_count
    return masked_sum(values, mask) / count


def constant_mean(
    values: Float[Array, "B T"],
    mask: Mask,
    max_tokens: int,
    sequence_count: Float[Array, ""] | float | None = None,
) -> Float[Array, ""]:
    """Mean over sequences of each sequence's token sum divided by a constant length, so the weight
    of a token does not depend on the length of its sequence (Dr. GRPO, arXiv:2503.20783, section
    3.2).

    Args:
      max_tokens: the constant: maximum number of tokens of a completion.
      sequence_count: the denominator, when `values` are only some rows of a batch; B when left out.
    """
    return sequence_sum_mean(values, mask, sequence_count) / max_tokens
