"""Sums and moments of per-token values under a mask."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Mask = Bool[Array, "B T"] | Float[Array, "B T"]


def masked_sum(values: Float[Array, "B T"], mask: Mask) -> Float[Array, ""]:
    """Σ values where the mask is true; values elsewhere, even NaN, have no effect."""
    return jnp.sum(jnp.where(mask, values, 0.0))


def whiten(values: Float[Array, "B T"], mask: Mask, epsilon: float = 1e-8) -> Float[Array, "B T"]:
    """(x − mean) / √(var + ε) over all tokens under the mask, with the sample variance."""
    count = jnp.maximum(jnp.sum(mask), 2)
    mean = masked_sum(values, mask) / count
    variance = masked_sum(jnp.square(values - mean), mask) / (count - 1)
    return (values - mean) / jnp.sqrt(variance + epsilon)
