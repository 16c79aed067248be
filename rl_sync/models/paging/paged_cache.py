"""KV cache whose pages lie anywhere in a pool; a table names the pages of each row.

So memory is bounded by the number of pages, not by rows and the longest of them, and rows that
begin alike may share pages. A page has C slots: the token at position s of a row is in slot s mod C
of the row's page s div C.

On a mesh that splits rows, each device has a pool of its own, for its own rows. An array of pages
is then split over the same mesh axes, and a table names pages by their numbers within the device.
Devices that share a kv head divide the slots of each page (`rl_sync.models.slot_shares`).

Letters in shapes: B rows, T positions, S key positions, K kv heads, H head dim, L layers, P pages
of a pool, Z pages of a row, C slots of a page, or lines, W numbers of a line, R rows of a prefill,
F pages to fill.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.models.cache import Axes, CacheSlots, KVCache
from rl_sync.models.config import ModelConfig
from rl_sync.models.lines import in_lines, line_shape
from rl_sync.models.paging.ragged import kernel_reads
from rl_sync.models.platform import TPU_LANES, platform
from rl_sync.models.sharding import SLOTS, Layout, constrain, using
from rl_sync.models.shards import on_shards
from rl_sync.models.slot_shares import first_slots, own_slots, shares

PAGE_TOKENS = 32
"""Number of tokens of a page."""

_ROWS = ("batch",)


class PagedCache(NamedTuple):
    """Keys and values by layer and page, and the pages of each row.

    If the cache is in lines, `keys` and `values` have the shape [L, P, K, C, W]. If a TPU's kernel
    reads it, `keys` have the shape [L, P, C, 2·K, H], with the values between the keys.

    Attributes:
      values: None if they are between the keys.
      table: None between two calls that read rows.
    """

    keys: Float[Array, "L P K H C"]
    values: Float[Array, "L P K C H"] | None
    table: Int[Array, "B Z"] | None = None


AnyCache = KVCache | PagedCache


class PageFills(NamedTuple):
    """Pages to fill from prefilled prompts, an equal number F for each share of the rows.

    Attributes:
      counts: number of pages that each share fills, the first ones; the others are not used.
      rows, numbers: row of the prefill, and page of that row.
      targets: page in the share's pool.
    """

    counts: Int[Array, " N"]
    rows: Int[Array, " N*F"]
    numbers: Int[Array, " N*F"]
    targets: Int[Array, " N*F"]


def page_axes(cache: PagedCache) -> tuple[Axes, Axes]:
    """Returns the logical axes of a pool's keys and values."""
    if cache.values is None:
        return ("layers", "batch", None, "kv", "head_dim"), ()
    values: Axes = ("layers", "batch", "kv", SLOTS, "head_dim")
    keys: Axes = ("layers", "batch", "kv", "head_dim", SLOTS)
    return (values if in_lines() else keys), values


def sharded(cache: PagedCache) -> PagedCache:
    """Shards a cache as the current layout says: pages and rows by rows, and pages by heads."""
    keys, values = page_axes(cache)
    return PagedCache(
        constrain(cache.keys, *keys),
        None if cache.values is None else constrain(cache.values, *values),
        None if cache.table is None else constrain(cache.table, *_ROWS),
    )


def page_bytes(config: ModelConfig, layout: Layout) -> int:
    """Returns the bytes of one page on a device, for all layers."""
    heads = layout.sharding(("kv",), (config.num_kv_heads,)).shard_shape((config.num_kv_heads,))[0]
    lines, width = PAGE_TOKENS, config.head_dim
    with using(layout.grouped(config.num_kv_heads)):
        if in_lines():
            lines, width = line_shape(config, PAGE_TOKENS)
        own = lines // shares()
    if platform() == "tpu":
        width = -(-width // TPU_LANES) * TPU_LANES
    return 2 * config.num_layers * heads * own * width * jnp.dtype(config.dtype).itemsize


def empty_pages(config: ModelConfig, count: int) -> PagedCache:
    """Makes a pool of pages, without a table."""
    shape = (config.num_layers, count, config.num_kv_heads)
    if kernel_reads(config):
        both = (*shape[:2], PAGE_TOKENS, 2 * config.num_kv_heads, config.head_dim)
        return PagedCache(jnp.zeros(both, config.dtype), None)
    if in_lines():
        lines = (*shape, *line_shape(config, PAGE_TOKENS))
        return PagedCache(jnp.zeros(lines, config.dtype), jnp.zeros(lines, config.dtype))
    return PagedCache(
        jnp.zeros((*shape, config.head_dim, PAGE_TOKENS), config.dtype),
        jnp.zeros((*shape, PAGE_TOKENS, config.head_dim), config.dtype),
    )


def write_paged(
    cache: PagedCache,
    layer: Int[Array, ""],
    keys: Float[Array, "B K H"],
    values: Float[Array, "B K H"],
    positions: Int[Array, " B"],
) -> PagedCache:
    """Writes one new token a row into the slot of its position, in one layer.

    Rows with a position below 0 are left unchanged.
    """
    assert cache.table is not None
    heads = ("batch", "kv", "head_dim")
    key_axes, value_axes = page_axes(cache)
    if cache.values is None:
        run = on_shards(_write_both, key_axes, (), heads, heads, _ROWS, _ROWS)
        dtype = cache.keys.dtype
        new = keys.astype(dtype), values.astype(dtype)
        return cache._replace(keys=run(cache.keys, layer, *new, cache.table, positions))
    in_order = _write_line if in_lines() else _write_value

    def written(put: Callable[..., Array], pool: Array, axes: Axes, new: Array) -> Array:
        run = on_shards(put, axes, (), heads, _ROWS, _ROWS)
        return run(pool, layer, new.astype(pool.dtype), cache.table, positions)

    return cache._replace(
        keys=written(_write_line if in_lines() else _write_key, cache.keys, key_axes, keys),
        values=written(in_order, cache.values, value_axes, values),
    )


def _place(
    pool: Array, table: Int[Array, "B Z"], positions: Int[Array, " B"], line_tokens: int = 1
) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Returns the page and this device's slot of each row's position.

    The page is impossible if the position is below 0, or has a slot of another device.
    """
    slots = own_slots(positions, line_tokens)
    number, slot = jnp.divmod(slots, PAGE_TOKENS // shares())
    page = jnp.take_along_axis(table, number[:, None], axis=1, mode="clip")[:, 0]
    return jnp.where(slots < 0, pool.shape[1], page), slot


def _write_key(
    pool: Float[Array, "L P K H C"],
    layer: Int[Array, ""],
    new: Float[Array, "B K H"],
    table: Int[Array, "B Z"],
    positions: Int[Array, " B"],
) -> Array:
    page, slot = _place(pool, table, positions)
    return pool.at[layer, page, :, :, slot].set(new, mode="drop")


def _write_value(
    pool: Float[Array, "L P K C H"],
    layer: Int[Array, ""],
    new: Float[Array, "B K H"],
    table: Int[Array, "B Z"],
    positions: Int[Array, " B"],
) -> Array:
    page, slot = _place(pool, table, positions)
    return pool.at[layer, page, :, slot].set(new, mode="drop")


def _write_both(
    pool: Float[Array, "L P C 2*K H"],
    layer: Int[Array, ""],
    keys: Float[Array, "B K H"],
    values: Float[Array, "B K H"],
    table: Int[Array, "B Z"],
    positions: Int[Array, " B"],
) -> Array:
    page, slot = _place(pool, table, positions)
    return pool.at[layer, page, slot].set(_interleaved(keys, values, 1), mode="drop")


def _interleaved(keys: Array, values: Array, axis: int) -> Array:
    """Puts each head's value behind its key along the axis of heads."""
    both = jnp.stack([keys, values], axis=axis + 1)
    return both.reshape(*keys.shape[:axis], -1, *keys.shape[axis + 1 :])


def _write_line(
    pool: Float[Array, "L P K C W"],
    layer: Int[Array, ""],
    new: Float[Array, "B K H"],
    table: Int[Array, "B Z"],
    positions: Int[Array, " B"],
) -> Array:
    """Writes tokens into their lines; see `rl_sync.models.lines.write_token`."""
    B, K, H = new.shape
    parts = pool.shape[-1] // H
    page, slot = _place(pool, table, positions, parts)
    line, part = jnp.divmod(slot, parts)
    place = pool.at[layer, page[:, None], jnp.arange(K), line[:, None]]
    if parts > 1:
        own = (jnp.arange(parts) == part[:, None])[:, None, :, None]
        old = place.get(mode="clip").reshape(B, K, parts, H)
        new = jnp.where(own, new[:, :, None], old).reshape(B, K, -1)
    return place.set(new, mode="drop")


def read_row_page(cache: PagedCache, layer: Int[Array, ""], number: Int[Array, ""]) -> CacheSlots:
    """Reads page `number` of each row, on one device's pool."""
    assert cache.table is not None
    pages = jax.lax.dynamic_index_in_dim(cache.table, number, axis=1, keepdims=False)

    def read(pool: Float[Array, "L P ..."]) -> Array:
        # A CPU copies rows of a matrix fastest, if no other operation is fused with the copy.
        L, P, *page = pool.shape
        rows = pool.reshape(L * P, math.prod(page))
        found = rows.at[layer * P + pages].get(mode="promise_in_bounds")
        return jax.lax.optimization_barrier(found).reshape(-1, *page)

    assert cache.values is not None
    return CacheSlots(read(cache.keys), read(cache.values))


def read_row_lines(
    cache: PagedCache, layer: Int[Array, ""], span: int
) -> tuple[Float[Array, "B K C W"], Float[Array, "B K C W"]]:
    """Gathers the lines of the pages that hold each row's first `span` positions."""

    def read(pool: Float[Array, "L P K C W"]) -> Array:
        found = _gathered_pages(cache, pool, layer, span)
        B, Z, K, C, W = found.shape
        return found.transpose(0, 2, 1, 3, 4).reshape(B, K, Z * C, W)

    assert cache.values is not None
    return read(cache.keys), read(cache.values)


def read_row_span(
    cache: PagedCache, layer: Int[Array, ""], span: int
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"]]:
    """Gathers keys and values of each row's first `span` positions."""

    def read(pool: Array, order: tuple[int, ...]) -> Array:
        found = _gathered_pages(cache, pool, layer, span).transpose(order)
        B, Z, C, K, H = found.shape
        return found.reshape(B, Z * C, K, H)[:, :span]

    assert cache.values is not None
    return read(cache.keys, (0, 1, 4, 2, 3)), read(cache.values, (0, 1, 3, 2, 4))


def _gathered_pages(
    cache: PagedCache, pool: Float[Array, "L P ..."], layer: Int[Array, ""], span: int
) -> Float[Array, "B Z ..."]:
    assert cache.table is not None
    L, P, *page = pool.shape
    pages = cache.table[:, : -(-span // PAGE_TOKENS)]
    return pool.reshape(L * P, *page).at[layer * P + pages].get(mode="promise_in_bounds")


def fill_pages(cache: PagedCache, prefix: KVCache, fills: PageFills) -> PagedCache:
    """Copies pages of prefilled prompts into pages of the pool.

    Args:
      prefix: a cache as `rl_sync.models.cache.cached` builds it, with a layer axis, whose rows
        every device has.
    """
    keys, values = page_axes(cache)
    if cache.values is None:
        given = ("layers", None, None, "kv", None, "head_dim")
        run = on_shards(_filled_both, keys, given, given, *[_ROWS] * 4)
        return cache._replace(keys=run(cache.keys, *prefix, *fills))
    assert cache.values is not None
    return cache._replace(
        keys=_filled(keys, 4 if in_lines() else 5, cache.keys, prefix.keys, fills),
        values=_filled(values, 4, cache.values, prefix.values, fills),
    )


def _filled(
    axes: Axes,
    slot_axis: int,
    pool: Float[Array, "L P ..."],
    prefix: Float[Array, "L Z R ..."],
    fills: PageFills,
) -> Array:
    """Fills pages from a prefix whose pages have as many slots, or hold all positions of a row.

    Args:
      slot_axis: axis of the prefix's slots, or of its lines.
    """

    def fill_all(
        pool: Array, prefix: Array, counts: Array, rows: Array, numbers: Array, targets: Array
    ) -> Array:
        slots = prefix.shape[slot_axis]
        width = min(slots, pool.shape[slot_axis - 1])
        more = -slots % width
        prefix = jnp.pad(prefix, [(0, more * (axis == slot_axis)) for axis in range(prefix.ndim)])
        sizes = [1 if axis in (1, 2) else size for axis, size in enumerate(prefix.shape)]
        sizes[slot_axis] = width

        def fill(i: Int[Array, ""], pool: Array) -> Array:
            page, slot = jnp.divmod(numbers[i] * width, slots + more)
            start: list[Array | int] = [0, page, rows[i], 0, 0, 0]
            start[slot_axis] = slot
            one = jax.lax.dynamic_slice(prefix, start, sizes)[:, 0]
            return jax.lax.dynamic_update_slice(pool, one, (0, targets[i], 0, 0, 0))

        return jax.lax.fori_loop(0, counts[0], fill, pool)

    given = ("layers", None, None, *axes[2:])
    return on_shards(fill_all, axes, given, *[_ROWS] * 4)(pool, prefix, *fills)


def _filled_both(
    pool: Float[Array, "L P C 2*K H"],
    keys: Float[Array, "L 1 R K T H"],
    values: Float[Array, "L 1 R K T H"],
    counts: Int[Array, " 1"],
    rows: Int[Array, " F"],
    numbers: Int[Array, " F"],
    targets: Int[Array, " F"],
) -> Array:
    more = -keys.shape[4] % PAGE_TOKENS
    keys, values = (
        jnp.pad(x, [(0, more * (axis == 4)) for axis in range(x.ndim)]) for x in (keys, values)
    )
    L, _, _, K, _, H = keys.shape

    def fill(i: Int[Array, ""], pool: Array) -> Array:
        start = (0, 0, rows[i], 0, numbers[i] * PAGE_TOKENS, 0)
        sizes = (L, 1, 1, K, PAGE_TOKENS, H)
        key, value = (
            jax.lax.dynamic_slice(x, start, sizes)[:, 0].swapaxes(2, 3) for x in (keys, values)
        )
        one = _interleaved(key, value, 3)
        return jax.lax.dynamic_update_slice(pool, one, (0, targets[i], 0, 0, 0))

    return jax.lax.fori_loop(0, counts[0], fill, pool)


def copy_pages(cache: PagedCache, pages: Int[Array, " Z"], span: int) -> KVCache:
    """Copies pages, numbered over all pools, into a prefix of one row."""

    def copy(pool: Float[Array, "L P ..."]) -> Array:
        return pool[:, pages][:, :, None]

    if cache.values is None:
        # [L Z 1 C 2K H] becomes [L Z 1 K C H] twice.
        both = copy(cache.keys)
        keys, values = (both[:, :, :, :, part::2].swapaxes(3, 4) for part in (0, 1))
    else:
        keys, values = copy(cache.keys), copy(cache.values)
    width = min(span, PAGE_TOKENS)
    if in_lines():
        L, Z, _, K, C, W = keys.shape
        lines, g = -(-span * C // PAGE_TOKENS), shares()

        def joined(x: Float[Array, "L Z 1 K C W"]) -> Float[Array, "L 1 1 K C W"]:
            x = x.reshape(L, Z, 1, K, g, C // g, W).transpose(0, 2, 3, 4, 1, 5, 6)
            return first_slots(x.reshape(L, 1, 1, K, Z * C, W), 4, lines)

        keys, values = joined(keys), joined(values)
    else:
        keys, values = first_slots(keys, 5, width), first_slots(values, 4, width)
    return KVCache(keys, values)
