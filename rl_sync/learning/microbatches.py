"""Microbatches: computations on more rows than fit into memory at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rl_sync.models.sharding import constrain

Trained = TypeVar("Trained")
"""A pytree of parameters, and of a gradient by them."""
Rows = TypeVar("Rows")
"""A pytree of arrays with a leading axis of rows."""
Sums = TypeVar("Sums")
"""A pytree of sums over rows."""
OfRows = TypeVar("OfRows")
"""A pytree of figures with a leading axis of rows."""
Loss = Callable[[Trained, Rows], tuple[Array, tuple[Sums, OfRows]]]


def gradient(
    loss: Loss[Trained, Rows, Sums, OfRows], params: Trained, rows: Rows, microbatch_rows: int
) -> tuple[Trained, tuple[Sums, OfRows]]:
    """Computes ∇ of a loss by the parameters, and what comes with it, a microbatch at a time.

    Args:
      loss: makes (loss, (metrics, of_rows)) of (params, rows). The loss and each metric are sums
        over constants of all rows, so results for microbatches add up to the result for all.
        `of_rows` is a pytree of arrays with a leading axis of rows.
      rows: a pytree of arrays with a leading axis of rows.
      microbatch_rows: rows at once, a divisor of all; 0 for all.

    Returns:
      (gradient, (metrics, of_rows)) of all rows.
    """
    grad = jax.grad(loss, has_aux=True)
    if not microbatch_rows:
        return grad(params, rows)
    parts = _parts(rows, microbatch_rows)

    def add(total: tuple[Trained, Sums], part: Rows) -> tuple[tuple[Trained, Sums], OfRows]:
        gradients, (metrics, of_rows) = grad(params, part)
        return jax.tree.map(jnp.add, total, (gradients, metrics)), of_rows

    gradients, (metrics, _) = jax.eval_shape(grad, params, jax.tree.map(lambda x: x[0], parts))
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (gradients, metrics))
    (gradients, metrics), of_rows = jax.lax.scan(add, nothing, parts)
    return gradients, (metrics, jax.tree.map(_joined, of_rows))


def map_rows(function: Callable[[Rows], Array], rows: Rows, microbatch_rows: int) -> Array:
    """Maps a function of rows, which makes one row of each, a microbatch at a time."""
    if not microbatch_rows:
        return function(rows)
    return _joined(jax.lax.map(function, _parts(rows, microbatch_rows)))


def _joined(parts: Array) -> Array:
    """Puts the rows of microbatches one behind the other."""
    return parts.reshape(-1, *parts.shape[2:])


def _parts(rows: Rows, microbatch_rows: int) -> Rows:
    def cut(x: Array) -> Array:
        return constrain(x.reshape(-1, microbatch_rows, *x.shape[1:]), None, "batch")

    return jax.tree.map(cut, rows)
