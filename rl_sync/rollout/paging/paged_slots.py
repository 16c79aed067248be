"""Programs on slots whose keys and values are in pages; see `rl_sync.rollout.slots`.

Letters in shapes: B rows (slots).
"""

from __future__ import annotations

import functools

import jax
from jaxtyping import Array, Int

from rl_sync.models.cache import KVCache
from rl_sync.models.config import ModelConfig
from rl_sync.models.paging.paged_cache import (
    PagedCache,
    PageFills,
    copy_pages,
    empty_pages,
    fill_pages,
    sharded,
)
from rl_sync.models.sharding import constrain
from rl_sync.rollout.slots import Prefix, SlotRows, Slots, gathered, on_mesh, with_rows


@functools.partial(jax.jit, static_argnames=("config", "pages"))
def empty_pool(config: ModelConfig, pages: int) -> PagedCache:
    """Makes the pool of an engine, with pages for all shares of the rows."""
    return sharded(empty_pages(config, pages))


@functools.partial(jax.jit, donate_argnames="slots")
def insert_pages(
    slots: Slots,
    prefix: Prefix,
    sources: Int[Array, " B"],
    targets: Int[Array, " B"],
    rows: SlotRows,
    fills: PageFills,
) -> Slots:
    """Starts sequences from prompts, and fills pages with the prompts' keys and values.

    Args:
      prefix: prompts; without a cache if no pages are to be filled.
      sources, targets: row of the prefix and slot of each sequence; a target outside the slots
        leaves its sequence out.
      rows: values of the new sequences, in the same order.
      fills: pages to fill.
    """
    prompts = constrain(prefix.tokens)
    tokens = slots.tokens.at[targets, : prompts.shape[1]].set(prompts[sources], mode="drop")
    cache = slots.cache
    if prefix.cache is not None:
        assert isinstance(cache, PagedCache)
        # Gathered once, because any slot may get any row.
        cache = fill_pages(cache, gathered(prefix.cache), fills)
    return on_mesh(Slots(tokens, cache, with_rows(slots.rows, targets, rows)))


@functools.partial(jax.jit, static_argnames="span")
def copy_pages_of(pool: PagedCache, pages: Int[Array, " Z"], span: int) -> KVCache:
    """Copies a sequence's pages up to position `span`, as a prefix with one row.

    All devices that share the rows of the slots get the copy, each for its own heads.

    Args:
      pages: its pages, numbered over all pools.
    """
    return gathered(copy_pages(pool, pages, span))
