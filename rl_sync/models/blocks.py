"""Computes attention by blocks in plain operations, for calls that no kernel supports.

Each block of queries attends to one block of keys after another, with a softmax that is updated for
each (Online normalizer calculation for softmax, arXiv:1805.02867, algorithm 3). Memory grows
linearly with the length of rows, not quadratically. Blocks of keys that come after all queries of a
block, or before their windows, are skipped. The backward pass computes scores again, from the
logarithm of each softmax's sum (FlashAttention-2, arXiv:2307.08691, algorithm 2).

Letters in shapes: B rows, T positions, S key positions, K kv heads, N query heads that share a kv
head, H head dim, Q queries of a block, R their heads and positions N·Q, C keys of a block.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl_sync.models import invariant
from rl_sync.models.slot_shares import PartialAttention

MASKED = -1e30
"""Score of a key that is not seen."""
_SCORES_BYTES = 64 << 20
_TILE = 8  # A block is a multiple of a tile.


class Tokens(NamedTuple):
    """Tokens that attend, or are attended to.

    Attributes:
      positions: positions whose distance decides what a token attends to; a single row of them may
        serve all rows.
      segments, prompts, ends: see `Context`.
    """

    positions: Int[Array, "B T"]
    segments: Int[Array, "B T"] | None
    prompts: Int[Array, "B T"] | None
    ends: Int[Array, "B T"] | None


def as_tokens(fields: Sequence[Int[Array, "B T"] | None]) -> Tokens:
    """Makes tokens from their fields."""
    positions, segments, prompts, ends = fields
    assert positions is not None
    return Tokens(positions, segments, prompts, ends)


def visible(here: Tokens, there: Tokens, window: Int[Array, ""]) -> Bool[Array, "B T S"]:
    """Returns the mask of tokens `there` that each token `here` attends to."""
    behind = here.positions[:, :, None] - there.positions[:, None, :]
    near = _or_of_tile(behind >= 0, here, there) & (behind < window)
    if here.segments is None or there.segments is None:
        return near
    own = here.segments[:, :, None] == there.segments[:, None, :]
    if here.prompts is None or there.prompts is None:
        return near & own
    family = here.prompts[:, :, None] == there.prompts[:, None, :]
    return near & ((own | (there.segments < 0)[:, None, :]) & family)


def _or_of_tile(mask: Bool[Array, "B T S"], here: Tokens, there: Tokens) -> Bool[Array, "B T S"]:
    """Returns a mask that is also true between tokens of one tile."""
    if here.ends is None or there.ends is None:
        return mask
    ends = here.ends[:, :, None]
    return mask | ((ends >= 0) & (ends == there.ends[:, None, :]))


class QKV(NamedTuple):
    """Queries, and the keys and values that they attend to."""

    queries: Float[Array, "B T K N H"]
    keys: Float[Array, "B S K H"]
    values: Float[Array, "B S K H"]


class BlockSizes(NamedTuple):
    """Number and size of the blocks of queries in each run of positions, and of blocks of keys."""

    query_blocks: int
    queries: int
    key_blocks: int
    keys: int

    @classmethod
    def of(cls, heads: int, run: int, keys: int) -> BlockSizes:
        """Returns the largest blocks whose scores in float32 do not exceed `_SCORES_BYTES`.

        Args:
          heads: number of query heads of all rows.
          run: number of queries at consecutive positions.
        """
        side = max(_TILE, math.isqrt(_SCORES_BYTES // (4 * heads)))
        return cls(*_cut_evenly(run, side), *_cut_evenly(keys, side))


def _cut_evenly(size: int, block: int) -> tuple[int, int]:
    count = -(-size // block)
    block = -(-size // (count * _TILE)) * _TILE
    return -(-size // block), block


def reached(
    indices: Int[Array, " Q"],
    window: Int[Array, ""] | None,
    block: int,
    ends: Int[Array, "B Q"] | None = None,
) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Returns the first block of keys that a block of queries attends to, and the one after the
    last.

    Args:
      indices: index of each query in its row, ascending.
      window: number of newest tokens that a query attends to; None if that says nothing about
        indices.
      block: number of keys of a block.
      ends: see `Context`.
    """
    first = jnp.int32(0) if window is None else jnp.maximum(indices[0] - (window - 1), 0) // block
    last = indices[-1] if ends is None else jnp.maximum(indices[-1], ends.max())
    return first, last // block + 1


class AskingTokens(NamedTuple):
    """Tokens of queries, and those of keys.

    No query attends to a key after it in the row, unless both are of one tile.

    Attributes:
      asking, asked: tokens of the queries and of the keys.
      indices: index in its row of each query.
      window: number of newest tokens that a query attends to.
    """

    asking: Tokens
    asked: Tokens
    indices: Int[Array, " T"]
    window: Int[Array, ""]


def nothing_seen(queries: Float[Array, "B K R H"]) -> PartialAttention:
    """Returns the attention to no keys."""
    nothing = jnp.zeros(queries.shape[:-1])
    return PartialAttention(nothing + MASKED, nothing, jnp.zeros(queries.shape))


def with_keys(
    seen: PartialAttention,
    scores: Float[Array, "B K R C"],
    values: Float[Array, "B K C H"],
    batch_invariant: bool,
) -> PartialAttention:
    """Adds a block of keys to the attention to earlier ones (Online normalizer calculation for
    softmax, arXiv:1805.02867, algorithm 3).

    Args:
      scores: float32, `MASKED` where a key is not seen.
      batch_invariant: see `ModelConfig`.
    """
    higher = jnp.maximum(seen.highest, scores.max(axis=-1))
    # Where nothing was visible yet, the sums so far are multiplied by 0 later.
    weights, shrunk = jnp.exp(scores - higher[..., None]), jnp.exp(seen.highest - higher)
    so_far = seen.total * shrunk, seen.mixed * shrunk[..., None]
    if batch_invariant:
        fresh = invariant.mixed(weights, values)
        total = invariant.total(jax.lax.optimization_barrier(weights))
        # Else small arrays round once where large ones round product and sum.
        so_far = jax.lax.optimization_barrier(so_far)
    else:
        fresh = jnp.einsum(
            "BKRC,BKCH->BKRH",
            weights.astype(values.dtype),
            values,
            preferred_element_type=jnp.float32,
        )
        total = weights.sum(axis=-1)
    return PartialAttention(higher, so_far[0] + total, so_far[1] + fresh)


class BlockCall(NamedTuple):
    """Properties of a call.

    Attributes:
      scale: factor of scores.
      runs: number of runs of equal length that the queries consist of, each of consecutive tokens.
      keys: number of keys of a block; 0 for the largest number that memory allows. With a number,
        results do not depend on other rows, or on the length of rows, to the bit; see `invariant`.
    """

    scale: float
    runs: int = 1
    keys: int = 0


def attend_by_blocks(
    attend: Callable[[QKV, Bool[Array, "B T S"]], Array],
    call: BlockCall,
    qkv: QKV,
    tokens: AskingTokens,
) -> Float[Array, "B T K N H"]:
    """Attends from queries to keys of the same rows, of which there may be more.

    Args:
      attend: attends from all queries to all keys under a mask, if there is only one block.
      qkv: queries, and keys and values in the order of rows.
    """
    runs = call.runs
    queries, keys, values = qkv
    asking, asked, indices, window = tokens
    B, T, K, N, _ = queries.shape
    sizes = BlockSizes.of(B * K * N, T // runs, keys.shape[1])
    if call.keys:
        sizes = sizes._replace(key_blocks=-(-keys.shape[1] // call.keys), keys=call.keys)
    elif 4 * B * K * N * T * keys.shape[1] <= _SCORES_BYTES:
        return attend(qkv, visible(asking, asked, window))
    run, more = T // runs, sizes.query_blocks * sizes.queries - T // runs

    def cut(x: Array) -> Array:
        x = x.reshape(x.shape[0], runs, run, *x.shape[2:])
        # The last token again: what a block reaches stays the same.
        x = jnp.pad(x, [(0, more if axis == 2 else 0) for axis in range(x.ndim)], mode="edge")
        return x.reshape(x.shape[0], -1, sizes.queries, *x.shape[3:]).swapaxes(0, 1)

    def join(x: Array) -> Array:
        x = x.swapaxes(0, 1).reshape(B, runs, -1, *x.shape[3:])[:, :, :run]
        return x.reshape(B, T, *x.shape[3:])

    def padded(x: Array, axis: int, value: int = 0) -> Array:
        behind = sizes.key_blocks * sizes.keys - x.shape[axis]
        widths = [(0, behind if axis == each else 0) for each in range(x.ndim)]
        return jnp.pad(x, widths, constant_values=value)

    blocks = _Blocks(
        jax.tree.map(cut, asking),
        jax.tree.map(lambda x: padded(x, 1), asked._replace(ends=None)),
        cut(indices[None])[:, 0],
        window,
    )
    if asked.ends is not None:  # Keys behind the row belong to no tile.
        ends = padded(asked.ends, 1, -1)
        blocks = blocks._replace(asked=blocks.asked._replace(ends=ends))
    # All queries that share a key head are rows of one matrix.
    rows = cut(queries).transpose(0, 1, 3, 4, 2, 5)
    rows = rows.reshape(*rows.shape[:3], -1, rows.shape[-1])
    by_head = QKV(rows, *(padded(x.swapaxes(1, 2), 2) for x in (keys, values)))
    mixed = _attend(call, sizes.keys, by_head, blocks)
    mixed = mixed.reshape(*mixed.shape[:3], N, sizes.queries, -1).transpose(0, 1, 4, 2, 3, 5)
    return join(mixed)


class _Blocks(NamedTuple):
    """Queries, with a leading axis of their blocks, and keys."""

    asking: Tokens
    asked: Tokens
    indices: Int[Array, "blocks Q"]
    window: Int[Array, ""]


class _QueryBlock(NamedTuple):
    """One block of queries, and all keys; `number` is that of a block of keys."""

    here: Tokens
    there: Tokens
    indices: Int[Array, " Q"]
    window: Int[Array, ""]
    block: int

    def reached(self) -> tuple[Array, Array]:
        # A shared prompt may be further away in the row than in the sequence.
        window = self.window if self.there.prompts is None else None
        return reached(self.indices, window, self.block, self.here.ends)

    def slice(self, x: Array, number: Array, axis: int) -> Array:
        return jax.lax.dynamic_slice_in_dim(x, number * self.block, self.block, axis)

    def scores(self, rows: Float[Array, "B K R H"], keys: Array, number: Array) -> Array:
        """Returns scores in float32, [B, K, R, C]."""
        some = self.slice(keys, number, 2)
        scores = jnp.einsum("BKRH,BKCH->BKRC", rows, some, preferred_element_type=jnp.float32)
        there = jax.tree.map(lambda x: self.slice(x, number, 1), self.there)
        order = self.indices[:, None] - (number * self.block + jnp.arange(self.block))
        seen = visible(self.here, there, self.window)
        seen = (seen & _or_of_tile(order >= 0, self.here, there))[:, None, None]
        B, K, R, C = scores.shape
        apart = scores.reshape(B, K, -1, *seen.shape[-2:])
        return jnp.where(seen, apart, MASKED).reshape(B, K, R, C)


def _scaled(scale: float, rows: Array) -> Array:
    return rows * jnp.asarray(scale, rows.dtype)


_Kept = tuple[Array, Array, Array, _Blocks, Array, Array]
"""Inputs of the backward pass: queries, keys, values, blocks, outputs and log Σ exp(scores)."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(
    call: BlockCall,
    block: int,
    by_head: QKV,
    blocks: _Blocks,
) -> Float[Array, "blocks B K R H"]:
    """Attends from each block of queries to all blocks of keys that it reaches.

    Args:
      by_head: queries [blocks, B, K, R, H], and keys and values [B, K, S, H].
    """
    return _forward(call, block, by_head, blocks)[0]


def _forward(call: BlockCall, block: int, by_head: QKV, blocks: _Blocks) -> tuple[Array, _Kept]:
    rows, keys, values = by_head

    def attended(part: tuple[Array, Tokens, Array]) -> tuple[Array, Array]:
        own, here, indices = part
        own = _scaled(call.scale, own)
        own_block = _QueryBlock(here, blocks.asked, indices, blocks.window, block)

        def add(number: Array, seen: PartialAttention) -> PartialAttention:
            scores, some = own_block.scores(own, keys, number), own_block.slice(values, number, 2)
            return with_keys(seen, scores, some, call.keys > 0)

        reach = own_block.reached()
        highest, total, mixed = jax.lax.fori_loop(*reach, add, nothing_seen(own))
        return (mixed / total[..., None]).astype(own.dtype), highest + jnp.log(total)

    mixed, log_totals = jax.lax.map(attended, (rows, blocks.asking, blocks.indices))
    return mixed, (rows, keys, values, blocks, mixed, log_totals)


def _backward(
    call: BlockCall, block: int, kept: _Kept, gradient: Float[Array, "blocks B K R H"]
) -> tuple[QKV, None]:
    rows, keys, values, blocks, mixed, log_totals = kept
    dtype = keys.dtype

    def add_block(
        sums: tuple[Array, Array], part: tuple[Array, Tokens, Array, Array, Array, Array]
    ) -> tuple[tuple[Array, Array], Array]:
        own, here, indices, mixed, log_total, of_mixed = part
        own = _scaled(call.scale, own)
        own_block = _QueryBlock(here, blocks.asked, indices, blocks.window, block)
        of_total = jnp.sum(of_mixed.astype(jnp.float32) * mixed, axis=-1)

        def add(number: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            of_own, of_keys, of_values = state
            product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
            weights = jnp.exp(own_block.scores(own, keys, number) - log_total[..., None])
            some = own_block.slice(values, number, 2)
            of_weights = product("BKRH,BKCH->BKRC", of_mixed, some)
            of_scores = (weights * (of_weights - of_total[..., None])).astype(dtype)

            def added(sum_: Array, more: Array) -> Array:
                more = more + own_block.slice(sum_, number, 2)
                return jax.lax.dynamic_update_slice_in_dim(sum_, more, number * block, 2)

            of_values = added(
                of_values, product("BKRC,BKRH->BKCH", weights.astype(dtype), of_mixed)
            )
            of_keys = added(of_keys, product("BKRC,BKRH->BKCH", of_scores, own))
            some = own_block.slice(keys, number, 2)
            return of_own + product("BKRC,BKCH->BKRH", of_scores, some), of_keys, of_values

        start = (jnp.zeros(own.shape), *sums)
        of_own, *found = jax.lax.fori_loop(*own_block.reached(), add, start)
        return (found[0], found[1]), _scaled(call.scale, of_own).astype(own.dtype)

    parts = (rows, blocks.asking, blocks.indices, mixed, log_totals, gradient)
    # Sums over blocks are in float32.
    start = (jnp.zeros(keys.shape), jnp.zeros(values.shape))
    (of_keys, of_values), of_rows = jax.lax.scan(add_block, start, parts)
    return QKV(of_rows, of_keys.astype(dtype), of_values.astype(dtype)), None


_attend.defvjp(_forward, _backward)
