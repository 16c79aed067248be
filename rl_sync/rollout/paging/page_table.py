"""The pages of each slot of a batch, in the order of its tokens.

The devices that a mesh splits rows over have pages for their own rows only. So slots, pages and
prefixes belong to shards, one for each share of the rows, and pages have numbers within a shard.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from rl_sync.models.config import ModelConfig
from rl_sync.models.paging.paged_cache import PAGE_TOKENS, page_bytes
from rl_sync.models.sharding import Layout
from rl_sync.rollout.paging.page_pool import PagePool


class PageFill(NamedTuple):
    """A page that gets keys and values from a prefilled prompt.

    Attributes:
      number: number of the page within the prompt.
      page: number of the physical page within the slot's shard.
    """

    number: int
    page: int


def most_fills(pages: int, prompts: int, rows: int) -> int:
    """Returns the maximum number of pages that one insertion of prompts fills in a shard.

    Args:
      pages: number of pages of each prompt.
      prompts: number of prompts.
      rows: number of slots of the shard, each of which may need the last page of a prompt for
        itself.
    """
    return pages * prompts + rows


@dataclasses.dataclass
class PageTable:
    """The pages of each slot.

    Attributes:
      page_tokens: number of tokens of a page.
      width: number of pages of the longest row.
      pools: pages of each shard.
      rows: number of slots, equally many of each shard.
    """

    page_tokens: int
    width: int
    pools: tuple[PagePool, ...]
    rows: int = 0
    _pages: dict[int, list[int]] = dataclasses.field(default_factory=dict)

    @property
    def pages(self) -> int:
        """Number of pages of a shard."""
        return self.pools[0].count

    @property
    def total(self) -> int:
        """Number of pages of all shards."""
        return sum(pool.count for pool in self.pools)

    @property
    def used(self) -> int:
        """Number of pages that sequences use, in all shards."""
        return sum(pool.used for pool in self.pools)

    @property
    def shared(self) -> int:
        """Number of pages that sharing saves, in all shards."""
        return sum(pool.shared for pool in self.pools)

    def count(self, tokens: int) -> int:
        """Returns the number of pages that hold so many tokens."""
        return -(-tokens // self.page_tokens)

    def shard(self, slot: int) -> int:
        """Returns the shard of a slot."""
        return slot * len(self.pools) // self.rows

    def of(self, slot: int) -> Sequence[int]:
        """Returns the pages of a slot, in the order of its tokens."""
        return self._pages.get(slot, ())

    def lacking(self, slot: int, tokens: int) -> int:
        """Returns how many pages a slot lacks for so many tokens."""
        return max(0, self.count(tokens) - len(self.of(slot)))

    def grow(self, slot: int, tokens: int) -> None:
        """Gives a slot the pages that it lacks for so many tokens; they must be available."""
        more = self.pools[self.shard(slot)].take(self.lacking(slot, tokens))
        self._pages.setdefault(slot, []).extend(more)

    def begin(self, slot: int, shared: Sequence[int], tokens: int) -> None:
        """Gives a free slot its first pages: shared ones, and then others for so many tokens."""
        assert slot not in self._pages, "its pages were dropped when it became free"
        self.pools[self.shard(slot)].share(shared)
        self._pages[slot] = list(shared)
        self.grow(slot, tokens)

    def fills(self, slot: int, shared: int, keys: Sequence[bytes], tokens: int) -> list[PageFill]:
        """Lists the pages of a slot that its prompt has to fill, and records their keys.

        Args:
          shared: number of its first pages that are filled already.
          keys: keys of the prompt's pages; see `prefix_keys`.
          tokens: number of tokens of the prompt.
        """
        pool, pages = self.pools[self.shard(slot)], self._pages[slot]
        for page, key in list(zip(pages, keys, strict=False))[shared:]:
            pool.name(page, key)
        return [PageFill(number, pages[number]) for number in range(shared, self.count(tokens))]

    def keep(self, slots: Collection[int]) -> None:
        """Drops the pages of all other slots."""
        for slot in self._pages.keys() - set(slots):
            self.pools[self.shard(slot)].drop(self._pages.pop(slot))

    def move(self, rows: int, sources: Mapping[int, int]) -> None:
        """Changes the number of slots, and drops the pages of slots that are not kept.

        Args:
          sources: former slot of each new slot that is in use, in the same shard.
        """
        self.keep(sources.values())
        held = self._pages
        before = {slot: self.shard(slot) for slot in held}
        self.rows = rows
        self._pages = {new: held[old] for new, old in sources.items() if old in held}
        assert all(self.shard(new) == before[sources[new]] for new in self._pages)

    def forget_prefixes(self) -> None:
        """Forgets all prefixes, since new weights give other keys and values."""
        for pool in self.pools:
            pool.forget_prefixes()

    def array(self) -> Int[np.ndarray, "B Z"]:
        """Returns the pages of all slots as an array; 0 where a slot has none."""
        table = np.zeros((self.rows, self.width), np.int32)
        for slot, pages in self._pages.items():
            table[slot, : len(pages)] = pages
        return table


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
