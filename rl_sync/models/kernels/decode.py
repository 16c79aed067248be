"""Attends from one new token of each row to a cache, and writes the token, in one kernel for GPUs.

XLA needs nine kernels for the same, one of which copies the layer's part of the cache. This one
rotates a token's query and key (RoPE), writes its key and value into the cache, and reads the row
no further than to its newest token (Online normalizer calculation for softmax, arXiv:1805.02867,
algorithm 3). If rows are few, several programs share one, and their parts are combined
(FlashDecoding: the same algorithm over parts of a row).

Letters in shapes: B rows, K kv heads, N query heads that share a kv head, H head dim, L layers, P
pages of a pool, Z pages of a row, C slots of a row or page, S parts of a row.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.models.blocks import QKV
from rl_sync.models.cache import cache_axes
from rl_sync.models.config import ModelConfig
from rl_sync.models.layers import Rotation
from rl_sync.models.paging.paged_cache import AnyCache, PagedCache, page_axes
from rl_sync.models.platform import has_flash_units, platform
from rl_sync.models.sharding import Layout, using
from rl_sync.models.shards import on_shards
from rl_sync.models.slot_shares import shares

_BACKEND = "jax.experimental.pallas.triton"  # Deprecated from JAX 0.12 on.
_HEAD_DIMS = (32, 64, 128, 256)
_MOST_QUERIES = 64  # Query heads that share a kv head.
_LEAST_QUERIES = 16  # Rows of the smallest product.
_BLOCK = 64  # Slots that are read at once.
_LEAST_PART = 256  # Slots for which a program of its own pays.
_PROGRAMS = 128  # Programs that keep a GPU busy: about one for each multiprocessor.
_MASKED = -1e30


def decodes_by_kernel(config: ModelConfig) -> bool:
    """Says whether the kernel serves a model's decode steps, on this platform and mesh.

    It computes in 16 bits, on NVIDIA GPUs of compute capability 8.0 or more, and needs heads whose
    size is a power of two. Devices must not share a kv head. `model.attention=einsum` excludes it.
    """
    return (
        platform() == "gpu"
        and config.attention == "auto"
        and not config.batch_invariant
        and config.dtype != "float32"
        and config.head_dim in _HEAD_DIMS
        and config.heads_per_kv <= _MOST_QUERIES
        and shares() == 1
        and importlib.util.find_spec(_BACKEND) is not None
        and has_flash_units()
    )


def reads_what_is_filled(config: ModelConfig, layout: Layout, *, drafts: bool) -> bool:
    """Says whether all decode steps of an engine attend by the kernel.

    Args:
      layout: sharding of the engine.
      drafts: whether steps may feed drafts, several tokens a row.
    """
    with using(layout.grouped(config.num_kv_heads)):
        return not drafts and decodes_by_kernel(config)


def attend_and_write(
    config: ModelConfig,
    qkv: QKV,
    by: Rotation,
    cache: AnyCache,
    positions: Int[Array, " B"],
    layer: Int[Array, ""],
    window: Int[Array, ""],
) -> tuple[Float[Array, "B 1 K N H"], AnyCache]:
    """Attends from one new token a row to it and to a cache in lines; writes it.

    Args:
      qkv: query, key and value of each row's token, before their rotation.
      by: rotation at the positions.
      positions, layer, window: see `NewTokens`.

    Returns:
      (attended, cache): the cache has the new tokens.
    """
    paged = isinstance(cache, PagedCache)

    def attend_here(
        heads: Array,
        cos: Array,
        sin: Array,
        positions: Array,
        layer: Array,
        window: Array,
        keys: Array,
        values: Array,
        *table: Array,
    ) -> tuple[Array, Array, Array]:
        new, shape = NewTokens(heads, cos, sin, positions, layer, window), keys.shape
        if not paged:
            keys, values = keys[:, 0], values[:, 0]
        held = HeldTokens(keys, values, *table)
        attended, held = attend_new(new, held, scale=config.attention_scale)
        return attended, held.keys.reshape(shape), held.values.reshape(shape)

    both = [x[:, :, :, None] for x in (qkv.keys, qkv.values)]
    heads = jnp.concatenate([qkv.queries, *both], axis=3)[:, 0]
    axes = page_axes(cache) if isinstance(cache, PagedCache) else cache_axes()
    tables = (cache.table,) if isinstance(cache, PagedCache) else ()
    of_rows, of_layer = ("batch",), ()
    cuts = (("batch", "kv"), *[of_rows] * 3, of_layer, of_layer, *axes, *[of_rows] * len(tables))
    run = on_shards(attend_here, *cuts, like=(0, 6, 7))
    angles = by.cos[:, 0], by.sin[:, 0]
    attended, keys, values = run(
        heads, *angles, positions, layer, window, cache.keys, cache.values, *tables
    )
    return attended[:, None], cache._replace(keys=keys, values=values)


class NewTokens(NamedTuple):
    """One token of each row, and where it belongs.

    Attributes:
      heads: query heads of each kv head, then its key and its value; not rotated.
      cos, sin: of RoPE's angles at the positions.
      positions: position in its sequence; below 0 for a row that is not fed, whose result has no
        meaning, and which is not written.
      layer: number of the layer.
      window: number of newest tokens that a token attends to, itself included.
    """

    heads: Float[Array, "B K N+2 H"]
    cos: Float[Array, "B H/2"]
    sin: Float[Array, "B H/2"]
    positions: Int[Array, " B"]
    layer: Int[Array, ""]
    window: Int[Array, ""]


class HeldTokens(NamedTuple):
    """Keys and values of earlier tokens.

    Attributes:
      keys, values: slots of each row, or of each page of a pool. Then P is B.
      table: pages of each row; None if each row has its slots by itself.
    """

    keys: Float[Array, "L P K C H"]
    values: Float[Array, "L P K C H"]
    table: Int[Array, "B Z"] | None = None

    @property
    def row_slots(self) -> int:
        """Number of slots of a row."""
        return self.keys.shape[3] * (1 if self.table is None else self.table.shape[1])


def attend_new(
    new: NewTokens, held: HeldTokens, *, scale: float, interpret: bool = False
) -> tuple[Float[Array, "B K N H"], HeldTokens]:
    """Attends from each row's new token to it and to earlier tokens; writes it.

    Args:
      scale: factor of scores.
      interpret: whether the kernel runs as plain operations, on any platform.

    Returns:
      (attended, held): the cache has the new tokens, in the same memory where it can be donated.
    """
    # Imported late, as it takes a while and other platforms do not need it.
    import jax.experimental.pallas as pl
    from jax.experimental.pallas import triton

    B, K, heads, H = new.heads.shape
    N = heads - 2
    rows = max(_LEAST_QUERIES, _power_of_two(N))
    parts = _parts(B * K, held.row_slots)
    scalars = [x.astype(jnp.int32).reshape(-1) for x in (new.layer, new.window)]
    tables = () if held.table is None else (held.table.astype(jnp.int32),)
    given = (*scalars, new.positions.astype(jnp.int32), *tables)
    inputs = (*given, new.cos, new.sin, new.heads, held.keys, held.values)
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    angles = pl.BlockSpec((None, H // 2), lambda b, k, s: (b, 0))
    of_heads = pl.BlockSpec(
        (None, None, max(rows, _power_of_two(heads)), H), lambda b, k, s: (b, k, 0, 0)
    )
    own = pl.BlockSpec((None, None, None, rows, H), lambda b, k, s: (b, k, s, 0, 0))
    one = pl.BlockSpec((None, None, None, rows), lambda b, k, s: (b, k, s, 0))
    kernel = functools.partial(_kernel, _Sizes(N, rows, parts, scale, bool(tables)))
    dtype = new.heads.dtype if parts == 1 else jnp.float32
    made = (
        jax.ShapeDtypeStruct(held.keys.shape, held.keys.dtype),
        jax.ShapeDtypeStruct(held.values.shape, held.values.dtype),
        jax.ShapeDtypeStruct((B, K, parts, N, H), dtype),
        *[jax.ShapeDtypeStruct((B, K, parts, N), jnp.float32)] * (2 * (parts > 1)),
    )
    keys, values, mixed, *sums = pl.pallas_call(
        kernel,
        grid=(B, K, parts),
        in_specs=[anywhere] * len(given) + [angles, angles, of_heads, anywhere, anywhere],
        out_specs=[anywhere, anywhere, own, *[one] * (2 * (parts > 1))],
        out_shape=made,
        input_output_aliases={len(given) + 3: 0, len(given) + 4: 1},
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=3),
        interpret=interpret,
        name="attend_new",
    )(*inputs)
    held = held._replace(keys=keys, values=values)
    if parts == 1:
        return mixed[:, :, 0], held
    highest, total = sums
    shares = jnp.exp(highest - highest.max(axis=2, keepdims=True))
    mixed = (mixed * shares[..., None]).sum(axis=2)
    return (mixed / (total * shares).sum(axis=2)[..., None]).astype(new.heads.dtype), held


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _parts(programs: int, slots: int) -> int:
    """Returns in how many parts programs share a row: a power of two."""
    wanted = min(-(-_PROGRAMS // programs), slots // _LEAST_PART)
    return 1 << (max(1, wanted).bit_length() - 1)


class _Sizes(NamedTuple):
    """Properties of a kernel: query heads, and those of a block; parts of a row; scale; whether
    rows are in pages."""

    queries: int
    rows: int
    parts: int
    scale: float
    paged: bool


def _kernel(of: _Sizes, layer_ref: Any, window_ref: Any, positions_ref: Any, *refs: Any) -> None:
    """Attends from the query heads of one kv head of one row to a part of the row."""
    import jax.experimental.pallas as pl
    from jax.experimental.pallas import triton

    table_ref = refs[0] if of.paged else None
    cos_ref, sin_ref, heads_ref, _, _, keys_ref, values_ref, mixed_ref, *sums = refs[of.paged :]
    row, head, part = (pl.program_id(axis) for axis in range(3))
    layer, position = layer_ref[0], positions_ref[row]
    slots, width = keys_ref.shape[3:]
    half, dtype = width // 2, keys_ref.dtype
    cos, sin = cos_ref[:], sin_ref[:]

    def turned(first: Array, second: Array) -> tuple[Array, Array]:
        first, second = first.astype(jnp.float32), second.astype(jnp.float32)
        # In the dtype of keys, as a key that is read later.
        found = first * cos - second * sin, second * cos + first * sin
        return found[0].astype(dtype), found[1].astype(dtype)

    real = (jnp.arange(of.rows) < of.queries)[:, None]

    def queries(start: int) -> Array:
        place = heads_ref.at[pl.ds(0, of.rows), pl.ds(start, half)]
        return triton.load(place, mask=real, other=0.0)

    asking = turned(queries(0), queries(half))
    key = turned(*(heads_ref[of.queries, pl.ds(start, half)] for start in (0, half)))
    value = heads_ref[of.queries + 1, pl.ds(0, width)].astype(dtype)

    def place_of(slot: Array) -> tuple[Array, Array]:
        """Returns the row or page of slots, and their numbers in it."""
        if table_ref is None:
            return jnp.zeros_like(slot) + row, slot
        number = slot // slots
        return table_ref[row, number], slot - number * slots

    newest = jnp.maximum(position, 0)
    with_new = part == 0
    at, own_slot = place_of(newest)
    writes = with_new & (position >= 0)
    for start, own in zip((0, half), key, strict=True):
        to = keys_ref.at[layer, at, head, own_slot, pl.ds(start, half)]
        triton.store(to, own, mask=jnp.full((half,), writes))
    to = values_ref.at[layer, at, head, own_slot, pl.ds(0, width)]
    triton.store(to, value, mask=jnp.full((width,), writes))

    wide = [x.astype(jnp.float32) for x in (*asking, *key)]
    score = ((wide[0] * wide[2][None]).sum(1) + (wide[1] * wide[3][None]).sum(1)) * of.scale
    highest = jnp.where(with_new, score, _MASKED)
    total = jnp.where(with_new, jnp.ones_like(score), 0.0)
    mixed = jnp.where(with_new, jnp.ones((of.rows, 1)), 0.0) * value.astype(jnp.float32)[None]

    first = jnp.maximum(newest - window_ref[0] + 1, 0)
    blocks = (newest - first + _BLOCK - 1) // _BLOCK
    each = (blocks + of.parts - 1) // of.parts
    columns = jnp.arange(half)[None]

    def add(number: Array, seen: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        highest, total, mixed = seen
        slot = first + number * _BLOCK + jnp.arange(_BLOCK)
        earlier = slot < newest
        at, slot = place_of(jnp.where(earlier, slot, 0))
        at, slot = at[:, None], slot[:, None]
        keys = [keys_ref[layer, at, head, slot, columns + start] for start in (0, half)]
        values = values_ref[layer, at, head, slot, jnp.arange(width)[None]]
        scores = triton.dot(asking[0], keys[0].T) + triton.dot(asking[1], keys[1].T)
        scores = jnp.where(earlier[None], scores * of.scale, _MASKED)
        higher = jnp.maximum(highest, scores.max(axis=1))
        # A part without slots keeps a total of 0.
        weights = jnp.where(earlier[None], jnp.exp(scores - higher[:, None]), 0.0)
        shrunk = jnp.exp(highest - higher)
        fresh = triton.dot(weights.astype(dtype), values)
        return higher, total * shrunk + weights.sum(axis=1), mixed * shrunk[:, None] + fresh

    end = jnp.minimum((part + 1) * each, blocks)
    highest, total, mixed = jax.lax.fori_loop(part * each, end, add, (highest, total, mixed))
    if of.parts == 1:
        mixed = mixed / total[:, None]
    everything = mixed_ref.at[pl.ds(0, of.rows), pl.ds(0, width)]
    triton.store(everything, mixed.astype(mixed_ref.dtype), mask=real)
    for ref, sum_ in zip(sums, (highest, total), strict=of.parts > 1):
        triton.store(ref.at[pl.ds(0, of.rows)], sum_, mask=jnp.arange(of.rows) < of.queries)
