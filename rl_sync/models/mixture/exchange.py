"""Exchanges rows between devices, each of which sends as many as it likes to each other.

The functions run inside `jax.shard_map`. XLA has an operation for this on TPUs and GPUs; on CPUs
every device gets all rows, and keeps its own.

Letters in shapes: R rows, X devices, S slots for rows that arrive, D numbers of a row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.models.platform import platform


def exchanged(
    rows: Float[Array, "R D"], sizes: Int[Array, "X X"], axes: tuple[str, ...], slots: int
) -> Float[Array, "S D"]:
    """Sends rows to other devices; returns those that arrive, ordered by device, then zeros.

    Args:
      rows: rows of this device, ordered by the device that they go to.
      sizes: number of rows that each device (first axis) sends to each other.
      axes: mesh axes of the devices.
      slots: number of rows that the result has, at least as many as arrive.
    """
    here = jax.lax.axis_index(axes)
    if platform() == "cpu":
        return _picked(rows, sizes, axes, slots)
    before = jnp.cumsum(sizes, axis=1) - sizes  # Where a device's rows for each other begin.
    after = jnp.cumsum(sizes, axis=0) - sizes  # Where they begin at the other.
    return jax.lax.ragged_all_to_all(
        rows,
        jnp.zeros((slots, rows.shape[1]), rows.dtype),
        before[here],
        sizes[here],
        after[here],
        sizes[:, here],
        axis_name=axes,
    )


def _picked(
    rows: Float[Array, "R D"], sizes: Int[Array, "X X"], axes: tuple[str, ...], slots: int
) -> Float[Array, "S D"]:
    """Does the same by a gather of all rows."""
    everything = jax.lax.all_gather(rows, axes)
    here = jax.lax.axis_index(axes)
    arriving = sizes[:, here]
    ends = jnp.cumsum(arriving)
    slot = jnp.arange(slots)
    source = jnp.minimum(jnp.searchsorted(ends, slot, side="right"), len(arriving) - 1)
    before = jnp.cumsum(sizes, axis=1) - sizes
    row = before[source, here] + slot - (ends - arriving)[source]
    filled = slot < ends[-1]
    found = everything[source, jnp.where(filled, row, 0)]
    return jnp.where(filled[:, None], found, 0)
