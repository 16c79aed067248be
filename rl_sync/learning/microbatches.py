"""Microbatches: computations on more rows than fit into memory at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rl_sync.models.sharding import constrain
from rl_sync.types import RowImages

Trained = TypeVar("Trained")
"""A pytree of parameters, or of their gradient."""
Rows = TypeVar("Rows")
"""A pytree of arrays with a leading axis of rows, or of tiles of images, in equal parts."""
Sums = TypeVar("Sums")
"""A pytree of sums over rows."""
OfRows = TypeVar("OfRows")
"""A pytree of figures with a leading axis of rows."""
Loss = Callable[[Trained, Rows], tuple[Array, tuple[Sums, OfRows]]]


def gradient(
    loss: Loss[Trained, Rows, Sums, OfRows],
    params: Trained,
    rows: Rows,
    microbatch_rows: int,
    scale: Float[Array, ""] | None = None,
) -> tuple[Trained, tuple[Sums, OfRows]]:
    """Computes the gradient of a loss, its metrics and per-row figures, one microbatch at a time.

    Args:
      loss: maps (params, rows) to (loss, (metrics, of_rows)). The loss and each metric are sums
        divided by constants of all rows, so the results of microbatches add up to the total.
        `of_rows` is a pytree of arrays with a leading axis of rows.
      rows: a pytree of arrays with a leading axis of rows.
      microbatch_rows: number of rows at once, a divisor of all rows; 0 for all of them. If there
        are fewer rows, they are one microbatch.
      scale: factor on the loss in the backward pass, by which the gradient is divided afterwards in
        the dtype of `params`; None for none.

    Returns:
      (gradient, (metrics, of_rows)) for all rows.
    """
    if scale is not None:
        gradients, figures = gradient(_scaled(loss, scale), params, rows, microbatch_rows)
        return jax.tree.map(lambda x: x / scale, gradients), figures
    grad = jax.grad(loss, has_aux=True)
    if not microbatch_rows or _row_count(rows) < microbatch_rows:
        return grad(params, rows)
    parts = _parts(rows, microbatch_rows)

    def add(total: tuple[Trained, Sums], part: Rows) -> tuple[tuple[Trained, Sums], OfRows]:
        gradients, (metrics, of_rows) = grad(params, part)
        return jax.tree.map(jnp.add, total, (gradients, metrics)), of_rows

    gradients, (metrics, _) = jax.eval_shape(grad, params, jax.tree.map(lambda x: x[0], parts))
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (gradients, metrics))
    (gradients, metrics), of_rows = jax.lax.scan(add, nothing, parts)
    return gradients, (metrics, jax.tree.map(_joined, of_rows))


def _scaled(
    loss: Loss[Trained, Rows, Sums, OfRows], scale: Float[Array, ""]
) -> Loss[Trained, Rows, Sums, OfRows]:
    def scaled(params: Trained, rows: Rows) -> tuple[Array, tuple[Sums, OfRows]]:
        value, figures = loss(params, rows)
        return value * scale, figures

    return scaled


def map_rows(function: Callable[[Rows], OfRows], rows: Rows, microbatch_rows: int) -> OfRows:
    """Applies a function that maps each row to one row, one microbatch at a time."""
    if not microbatch_rows:
        return function(rows)
    found = jax.lax.map(function, _parts(rows, microbatch_rows))
    return jax.tree.map(_joined, found)


def _joined(parts: Array) -> Array:
    """Concatenates the rows of microbatches."""
    return parts.reshape(-1, *parts.shape[2:])


def _parts(rows: Rows, microbatch_rows: int) -> Rows:
    count = _row_count(rows) // microbatch_rows

    def cut(x: Array) -> Array:
        return constrain(x.reshape(count, -1, *x.shape[1:]), None, "batch")

    return jax.tree.map(cut, rows)


def _row_count(rows: Rows) -> int:
    """Returns the number of rows; tiles of images are others (`RowImages`)."""
    first = jax.tree.leaves(rows, is_leaf=lambda x: isinstance(x, RowImages))[0]
    return (first.at if isinstance(first, RowImages) else first).shape[0]
