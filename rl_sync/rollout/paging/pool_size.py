"""Computes the number of pages that an engine's cache has."""

from __future__ import annotations

from rl_sync.models.config import ModelConfig
from rl_sync.models.paging.paged_cache import PAGE_TOKENS, page_bytes
from rl_sync.models.sharding import Layout
from rl_sync.rollout.paging.page_pool import PagePool
from rl_sync.rollout.paging.page_table import PageTable


def pages_of(
    config: ModelConfig, layout: Layout, *, slots: int, length: int, cache_bytes: int
) -> PageTable:
    """Makes the table of the pages that `cache_bytes` bytes of each device hold.

    There are at most as many pages as all slots may fill.

    Raises:
      ValueError: the longest sequence does not fit, or the mesh cannot split the slots evenly.
    """
    shards, size = layout.batch_shards, page_bytes(config, layout)
    if slots % shards:
        raise ValueError(
            f"slots={slots} cannot be cut evenly into {shards} parts, as a cache in pages wants"
            " it: use a multiple, or leave out cache_bytes."
        )
    width = -(-length // PAGE_TOKENS)
    count = min(cache_bytes // size, slots // shards * width)
    if count < width:
        raise ValueError(
            f"cache_bytes={cache_bytes} hold {count * PAGE_TOKENS} tokens on a device, but a"
            f" sequence may have {length}: use at least {width * size} bytes, or shorten sequences."
        )
    return PageTable(PAGE_TOKENS, width, tuple(PagePool(count) for _ in range(shards)))
