"""KV cache: keys and values of the tokens that a model has seen, kept for the tokens to come.

A cache consists of pages. A page has C slots for each row: the token at position s is in slot s mod
C of page s div C. On CPUs pages are small, so that attention reads no further than the longest row,
and each page is contiguous in memory. On other platforms one page holds all positions, which keeps
the device busy, and its slots are in lines (`rl_sync.models.lines`). Devices that share a kv head
divide the slots of each page (`rl_sync.models.slot_shares`).

Letters in shapes: B rows, T positions, S key positions, K kv heads, H head dim, L layers, Z pages,
C slots of a page, or lines, W numbers of a line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.models.config import ModelConfig
from rl_sync.models.invariant import KEYS
from rl_sync.models.lines import in_lines, line_shape, lines_of, write_token
from rl_sync.models.platform import platform
from rl_sync.models.sharding import SLOTS
from rl_sync.models.shards import on_shards
from rl_sync.models.slot_shares import dealt, evenly, merged, own_slots, shares, split

_PAGE_SLOTS = 32

T = TypeVar("T")


class KVCache(NamedTuple):
    """Keys and values by layer.

    In `keys` the slots are the innermost axis: on CPUs both products of attention are fastest with
    this layout. If the cache is in lines, both arrays have the shape [L, 1, B, K, C, W].
    """

    keys: Float[Array, "L Z B K H C"]
    values: Float[Array, "L Z B K C H"]


class CacheSlots(NamedTuple):
    """Some slots of a layer."""

    keys: Float[Array, "B K H C"]
    values: Float[Array, "B K C H"]


Axes = tuple[str | None, ...]


def cache_axes() -> tuple[Axes, Axes]:
    """Returns the logical axes of a cache's keys and values."""
    values: Axes = ("layers", None, "batch", "kv", SLOTS, "head_dim")
    keys: Axes = ("layers", None, "batch", "kv", "head_dim", SLOTS)
    return values if in_lines() else keys, values


def slot_axes() -> tuple[int, int]:
    """Returns the numbers of the axes of slots in keys and in values."""
    keys, values = cache_axes()
    return keys.index(SLOTS), values.index(SLOTS)


def split_slots(cache: KVCache) -> KVCache:
    """Splits a cache's slots into the devices' shares of them; see `slot_shares.split`."""
    return KVCache(*map(split, cache, slot_axes()))


def merged_slots(cache: KVCache) -> KVCache:
    """Undoes `split_slots`."""
    return KVCache(*map(merged, cache, slot_axes()))


def map_with_axes(function: Callable[[Array, Axes], T], cache: KVCache) -> tuple[T, T]:
    """Applies a function to keys and to values, each with its logical axes."""
    keys, values = cache_axes()
    return function(cache.keys, keys), function(cache.values, values)


def reads_by_pages(config: ModelConfig) -> bool:
    """True if a cache is read page by page, only as far as its rows reach.

    A single span then serves rows of all lengths.
    """
    return config.attention == "auto" and platform() == "cpu"


def empty_cache(config: ModelConfig, rows: int, length: int) -> KVCache:
    """Makes a cache with at least `length` slots a row."""
    pages, slots = _paging(config, length)
    shape = (config.num_layers, pages, rows, config.num_kv_heads)
    if in_lines():
        lines = (*shape, *line_shape(config, slots))
        return KVCache(jnp.zeros(lines, config.dtype), jnp.zeros(lines, config.dtype))
    return KVCache(
        jnp.zeros((*shape, config.head_dim, slots), config.dtype),
        jnp.zeros((*shape, slots, config.head_dim), config.dtype),
    )


def cached(
    config: ModelConfig, keys: Float[Array, "B T K H"], values: Float[Array, "B T K H"]
) -> KVCache:
    """Builds the cache of one layer from T tokens a row: a cache without the layer axis.

    Its pages may have fewer slots than those of a longer cache; they then fill the first slots
    there.
    """
    if in_lines():
        return KVCache(lines_of(config, keys)[None], lines_of(config, values)[None])
    pages, slots = _paging(config, keys.shape[1])

    def paged(x: Float[Array, "B T K H"], order: tuple[int, ...]) -> Array:
        x = jnp.pad(x, ((0, 0), (0, pages * slots - x.shape[1]), (0, 0), (0, 0)))
        x = x.reshape(x.shape[0], pages, slots, *x.shape[2:])
        return dealt(x, 2, ("batch", None, SLOTS, "kv", "head_dim")).transpose(order)

    return KVCache(paged(keys, (1, 0, 3, 4, 2)), paged(values, (1, 0, 3, 2, 4)))


def write(
    cache: KVCache,
    layer: Int[Array, ""],
    keys: Float[Array, "B K H"],
    values: Float[Array, "B K H"],
    positions: Int[Array, " B"],
) -> KVCache:
    """Writes one new token a row into the slot of its position, in one layer.

    Rows with a position below 0 are left unchanged.
    """
    ways = (_write_line, _write_line) if in_lines() else (_write_key, _write_value)
    held = zip(ways, cache_axes(), cache, (keys, values), strict=True)
    if shares() == 1:
        return KVCache(*(put(old, layer, new, positions) for put, _, old, new in held))
    new_axes = ("batch", "kv", "head_dim")
    return KVCache(
        *(
            on_shards(put, axes, (), new_axes, ("batch",))(old, layer, new, positions)
            for put, axes, old, new in held
        )
    )


def _write_line(
    held: Float[Array, "L 1 B K C W"],
    layer: Int[Array, ""],
    new: Float[Array, "B K H"],
    positions: Int[Array, " B"],
) -> Float[Array, "L 1 B K C W"]:
    slots = own_slots(positions, held.shape[-1] // new.shape[-1])
    return write_token(held[:, 0], layer, new, slots)[:, None]


def _write_key(
    held: Float[Array, "L Z B K H C"],
    layer: Int[Array, ""],
    new: Float[Array, "B K H"],
    positions: Int[Array, " B"],
) -> Float[Array, "L Z B K H C"]:
    page, slot = _place(positions, held.shape[1], held.shape[5])
    rows = jnp.arange(new.shape[0])
    return held.at[layer, page, rows, :, :, slot].set(new.astype(held.dtype))


def _write_value(
    held: Float[Array, "L Z B K C H"],
    layer: Int[Array, ""],
    new: Float[Array, "B K H"],
    positions: Int[Array, " B"],
) -> Float[Array, "L Z B K C H"]:
    page, slot = _place(positions, held.shape[1], held.shape[4])
    rows = jnp.arange(new.shape[0])
    return held.at[layer, page, rows, :, slot].set(new.astype(held.dtype))


def _place(
    positions: Int[Array, " B"], pages: int, page_slots: int
) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Returns the page and the slot of each position; the page is out of bounds if it has none."""
    slots = own_slots(positions)
    page, slot = jnp.divmod(slots, page_slots)
    return jnp.where(slots < 0, pages, page), slot


def read_lines(
    config: ModelConfig, cache: KVCache, layer: Int[Array, ""], span: int
) -> tuple[Float[Array, "B K C W"], Float[Array, "B K C W"]]:
    """Reads the lines of a layer's first `span` positions; the last line may hold more.

    If devices divide the lines, it reads this device's share of them.
    """
    _, Z, B, K, _, _ = cache.keys.shape
    count, width = line_shape(config, span)
    sizes = (1, Z, B, K, count // shares(), width)

    def read(x: Array) -> Array:
        return jax.lax.dynamic_slice(x, (layer, 0, 0, 0, 0, 0), sizes)[0, 0]

    return read(cache.keys), read(cache.values)


def read_page(cache: KVCache, layer: Int[Array, ""], number: Int[Array, ""]) -> CacheSlots:
    """Reads one page of a layer."""

    def read(x: Float[Array, "L Z ..."]) -> Array:
        return jax.lax.dynamic_slice(x, (layer, number, 0, 0, 0, 0), (1, 1, *x.shape[2:]))[0, 0]

    return CacheSlots(read(cache.keys), read(cache.values))


def read_span(
    cache: KVCache, layer: Int[Array, ""], span: int
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"]]:
    """Reads keys and values of a layer's first `span` positions."""
    _, _, B, K, H, C = cache.keys.shape
    pages, slots = -(-span // C), min(span, C)

    def read(x: Array, sizes: tuple[int, ...], order: tuple[int, ...]) -> Array:
        x = jax.lax.dynamic_slice(x, (layer, 0, 0, 0, 0, 0), (1, pages, B, K, *sizes))[0]
        return x.transpose(order).reshape(B, pages * slots, K, H)[:, :span]

    keys = read(cache.keys, (H, slots), (1, 0, 4, 2, 3))
    return keys, read(cache.values, (slots, H), (1, 0, 3, 2, 4))


def _paging(config: ModelConfig, length: int) -> tuple[int, int]:
    """Returns the number of pages, and the number of slots of each."""
    most = KEYS if config.batch_invariant else _PAGE_SLOTS  # As many are read at once.
    slots = evenly(min(length, most) if reads_by_pages(config) else length)
    return -(-length // slots), slots
