"""Sums and moments of values that a mask or weights select."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Mask = Bool[Array, "B T"] | Float[Array, "B T"]
Weights = Bool[Array, "*shape"] | Float[Array, "*shape"]


def masked_sum(values: Float[Array, "B T"], mask: Mask) -> Float[Array, ""]:
    """Σ values where the mask is true; values elsewhere, even NaN, have no effect."""
    return jnp.sum(jnp.where(mask, values, 0.0))


def mean(
    values: Float[Array, "*shape"], weights: Weights | None = None, axis: int | None = None
) -> Float[Array, "*means"]:
    """Σ w x / Σ w, to the bit the common value if all values of positive weight are equal.

    Values without weight, even NaN, have no effect. The mean of nothing is 0.

    Args:
      weights: w, a mask or numbers; None for equal weights.
      axis: axis of the values that is averaged, of which length 1 is left; None for all axes.
    """
    least, excess = _least_and_excess(values, weights, axis)
    return least + excess


def centered(
    values: Float[Array, "*shape"], weights: Weights | None = None, axis: int | None = None
) -> Float[Array, "*shape"]:
    """x − mean(x), exactly 0 if all values of positive weight are equal; arguments as in `mean`.

    A sum of equal numbers, divided by how many they are, may be rounded. So the least value is
    subtracted first. This also keeps deviations that are smaller than the rounding of the mean.
    """
    least, excess = _least_and_excess(values, weights, axis)
    return values - least - excess


def whiten(
    values: Float[Array, "*shape"], weights: Weights, epsilon: float = 1e-8
) -> Float[Array, "*shape"]:
    """(x − mean) / √(var + ε) over all values, with the sample variance; 0 if the values of
    positive weight are equal, and for values without weight.

    Args:
      weights: a mask, or how many times each value counts.
    """
    deviations = jnp.where(weights > 0, centered(values, weights), 0.0)
    squares = jnp.sum(weights * jnp.square(deviations))
    variance = squares / jnp.maximum(jnp.sum(weights) - 1, 1)
    return deviations / jnp.sqrt(variance + epsilon)


def _least_and_excess(
    values: Float[Array, "*shape"], weights: Weights | None, axis: int | None
) -> tuple[Float[Array, "*means"], Float[Array, "*means"]]:
    """Splits a mean into the least value that has weight, and the mean of what exceeds it."""
    weights = jnp.ones_like(values) if weights is None else weights
    counts = weights > 0
    least = jnp.min(values, axis=axis, keepdims=True, where=counts, initial=jnp.inf)
    least = jnp.where(counts.any(axis=axis, keepdims=True), least, 0.0)
    total = weights.sum(axis=axis, keepdims=True)
    exceeding = jnp.where(counts, weights * (values - least), 0.0)
    return least, exceeding.sum(axis=axis, keepdims=True) / jnp.where(total > 0, total, 1)
