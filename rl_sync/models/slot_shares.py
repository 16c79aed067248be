"""Divides a cache's slots among the devices that share a key and value head.

Such devices form a group of g (`rl_sync.models.sharding`). Slots, or lines of them, are dealt to
them in turn: device i has those with the numbers i, i + g, i + 2g, … of each page, in this order.
So each has an equal share of every sequence, however long it is, and reads as little of it. The
axis of slots has the share of device 0 first, then that of device 1, and so on. Its size is a
multiple of g.

In a decode step, the devices of a group gather their queries, attend with all of them to their own
slots, and exchange the results (Flash-Decoding for long-context inference, Dao et al., 2023).

Letters in shapes: B rows, K kv heads, N query heads that share a kv head, H head dim, S slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.models.sharding import GROUP, constrain, in_use


class PartialAttention(NamedTuple):
    """Attention to some of the positions of each row, before the division by the softmax's sum.

    Attributes:
      highest: greatest score of each query.
      total: sum of exp(score − highest).
      mixed: sum of values, each weighted by exp(score − highest).
    """

    highest: Float[Array, "B K N"]
    total: Float[Array, "B K N"]
    mixed: Float[Array, "B K N H"]


def shares() -> int:
    """Returns the number of devices that divide a cache's slots; 1 if they are not divided."""
    return in_use().slot_shares


def evenly(count: int) -> int:
    """Rounds a number of slots, or of lines, up to a multiple of the shares."""
    return -(-count // shares()) * shares()


def dealt(x: Array, axis: int, axes: Sequence[str | None]) -> Array:
    """Deals the slots of an array to the devices, from the order of their positions.

    Args:
      axis: axis of the slots, of a size that the shares divide.
      axes: logical names of the axes.
    """
    if shares() == 1:
        return x
    turns = x.reshape(*x.shape[:axis], -1, shares(), *x.shape[axis + 1 :])
    # Each device takes its own slots before anything else is done with them.
    turns = constrain(turns, *axes[:axis], None, *axes[axis:])
    return constrain(merged(turns.swapaxes(axis, axis + 1), axis), *axes)


def split(x: Array, axis: int) -> Array:
    """Splits an axis of slots into the shares and the slots of each, if there are several shares.

    A change of the first slots of all shares then changes each device's own slots alone.
    """
    if shares() == 1:
        return x
    return x.reshape(*x.shape[:axis], shares(), -1, *x.shape[axis + 1 :])


def merged(x: Array, axis: int) -> Array:
    """Undoes `split`."""
    if shares() == 1:
        return x
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def first_slots(x: Array, axis: int, count: int) -> Array:
    """Returns the slots of the first `count` positions, rounded up to a multiple of the shares."""
    own = evenly(count) // shares()
    parts = split(x, axis)
    return merged(jax.lax.slice_in_dim(parts, 0, own, axis=axis + parts.ndim - x.ndim), axis)


def positions_of(slots: Int[Array, " S"], line_tokens: int = 1) -> Int[Array, " S"]:
    """Returns the positions of this device's slots, on one device's share.

    Args:
      line_tokens: number of tokens of a line; lines are dealt whole.
    """
    if shares() == 1:
        return slots
    line, part = jnp.divmod(slots, line_tokens)
    return (line * shares() + jax.lax.axis_index(GROUP)) * line_tokens + part


def own_slots(positions: Int[Array, " B"], line_tokens: int = 1) -> Int[Array, " B"]:
    """Returns the slots of positions, on one device's share.

    They are −1 for positions below 0, and for those of other devices.
    """
    if shares() == 1:
        return positions
    line, part = jnp.divmod(positions, line_tokens)
    own, share = jnp.divmod(line, shares())
    is_own = (positions >= 0) & (share == jax.lax.axis_index(GROUP))
    return jnp.where(is_own, own * line_tokens + part, -1)


def combined(part: PartialAttention, own_heads: bool) -> Float[Array, "B K N H"]:
    """Returns the attention to all positions, from that to each device's share of them.

    Args:
      own_heads: whether a device gets the result of its own query heads, or of all of them.
    """
    if shares() == 1:
        return part.mixed / part.total[..., None]
    # One exchange instead of three.
    packed = jnp.concatenate([part.mixed, part.highest[..., None], part.total[..., None]], axis=-1)
    if own_heads:
        packed = jax.lax.all_to_all(packed, GROUP, split_axis=2, concat_axis=0, tiled=True)
        packed = packed.reshape(shares(), -1, *packed.shape[1:])
    else:
        packed = jax.lax.all_gather(packed, GROUP)
    mixed, highest, total = packed[..., :-2], packed[..., -2:-1], packed[..., -1:]
    shrunk = jnp.exp(highest - highest.max(axis=0))
    return (mixed * shrunk).sum(axis=0) / (total * shrunk).sum(axis=0)
