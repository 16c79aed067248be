"""Computes attention by blocks of queries in plain operations, for calls that no kernel supports.

Memory grows linearly with the length of rows, not quadratically. The work is not reduced by a
window, nor by the causal mask.

Letters in shapes: B rows, T positions, S key positions, K kv heads, N query heads that share a kv
head, H head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

_SCORES_BYTES = 128 << 20
_TILE = 8  # A block is a multiple of a tile.


class Tokens(NamedTuple):
    """Tokens that attend, or are attended to.

    Attributes:
      positions: positions whose distance decides what a token attends to; a single row of them may
        serve all rows.
      segments, prompts: see `Context`.
    """

    positions: Int[Array, "B T"]
    segments: Int[Array, "B T"] | None
    prompts: Int[Array, "B T"] | None


def visible(here: Tokens, there: Tokens, window: Int[Array, ""]) -> Bool[Array, "B T S"]:
    """Returns the mask of tokens `there` that each token `here` attends to."""
    behind = here.positions[:, :, None] - there.positions[:, None, :]
    near = (behind >= 0) & (behind < window)
    if here.segments is None or there.segments is None:
        return near
    own = here.segments[:, :, None] == there.segments[:, None, :]
    if here.prompts is None or there.prompts is None:
        return near & own
    family = here.prompts[:, :, None] == there.prompts[:, None, :]
    return near & ((own | (there.segments < 0)[:, None, :]) & family)


def attend_by_blocks(
    attend: Callable[[Array, Array, Array, Bool[Array, "B T S"]], Array],
    queries: Float[Array, "B T K N H"],
    keys: Float[Array, "B T K H"],
    values: Float[Array, "B T K H"],
    window: Int[Array, ""],
    *tokens: Int[Array, "B T"] | None,
) -> Float[Array, "B T K N H"]:
    """Attends from one block of queries after another; there may be more keys than queries.

    The backward pass recomputes the scores of a block.

    Args:
      attend: attends from queries to keys and values under a mask.
      tokens: the fields of `Tokens`, first of the queries, then of the keys.
    """
    B, T, K, N, _ = queries.shape
    asking, asked = (_tokens(part) for part in (tokens[:3], tokens[3:]))
    count = min(-(-4 * B * K * N * T * keys.shape[1] // _SCORES_BYTES), -(-T // _TILE))
    if count == 1:
        return attend(queries, keys, values, visible(asking, asked, window))
    dtype, block = keys.dtype, -(-T // (count * _TILE)) * _TILE
    # The gradients of keys and values are sums over blocks.
    keys, values = keys.astype(jnp.float32), values.astype(jnp.float32)

    def cut(x: Array) -> Array:
        x = jnp.pad(x, [(0, count * block - T if axis == 1 else 0) for axis in range(x.ndim)])
        return x.reshape(-1, count, block, *x.shape[2:]).swapaxes(0, 1)

    @jax.checkpoint
    def attended(part: tuple[Array, Tokens]) -> Array:
        some, here = part
        seen = visible(here, asked, window)
        return attend(some, keys.astype(dtype), values.astype(dtype), seen)

    mixed = jax.lax.map(attended, (cut(queries), jax.tree.map(cut, asking)))
    return mixed.swapaxes(0, 1).reshape(B, count * block, *mixed.shape[3:])[:, :T]


def _tokens(fields: Sequence[Int[Array, "B T"] | None]) -> Tokens:
    positions, segments, prompts = fields
    assert positions is not None
    return Tokens(positions, segments, prompts)
