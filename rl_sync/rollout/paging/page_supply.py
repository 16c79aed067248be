"""Supplies sequences with pages, and takes pages from others where they do not suffice.

Pages come, in this order, from free ones and those of prefixes that no sequence uses, from held
sequences, longest held first, and from the youngest sequences in flight, which are interrupted and
continue later. The oldest sequence of each shard is never interrupted, so all of them finish.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from rl_sync.rollout.kv_offload import KvOffload
from rl_sync.rollout.paging.page_pool import prefix_keys
from rl_sync.rollout.paging.page_table import PageFill, PageTable
from rl_sync.rollout.queue import Queue, Waiting
from rl_sync.rollout.sequence import GrowingSequence
from rl_sync.rollout.slot_table import SlotTable


class Place(NamedTuple):
    """A slot for a sequence to start, which has its first pages.

    Attributes:
      slot: the slot.
      shared: number of its first pages that are filled already.
    """

    slot: int
    shared: int


@dataclasses.dataclass
class PageSupply:
    """Gives pages to the sequences of an engine.

    Attributes:
      table: pages of each slot.
      occupancy, queue, aside: parts of the engine.
      chunk_tokens: maximum decode steps of a chunk.
      most_stepped: maximum number of prompt tokens that decode steps read.
      reuses: whether requests share pages with other requests; the completions of one always do.
      version: version of the weights.
      preemptions: number of interrupted sequences so far.
    """

    table: PageTable
    occupancy: SlotTable
    queue: Queue
    aside: KvOffload
    chunk_tokens: int
    most_stepped: int
    reuses: bool = True
    version: int = -1
    preemptions: int = 0

    def take_weights(self, version: int) -> None:
        """Forgets all prefixes, which older weights computed."""
        self.version = version
        self.table.forget_prefixes()

    def tidy(self) -> None:
        """Drops the pages of slots that have become free."""
        self.table.keep(self.occupancy.taken)

    def supply(self) -> None:
        """Makes sure that each sequence in flight has pages for its next chunk, oldest first."""
        self.tidy()
        for slot, sequence in sorted(self.occupancy.live.items(), key=lambda item: item[1].age):
            newest = sequence.length - sequence.unread - 1
            reach = self._reach(newest, sequence)
            pool = self.table.pools[self.table.shard(slot)]
            while slot in self.occupancy.live:
                if self.table.lacking(slot, reach) <= pool.available:
                    self.table.grow(slot, reach)
                    break
                if not self._evict(self.table.shard(slot)):
                    self._interrupt(self._youngest(self.table.shard(slot)))

    def place(self, waiting: Waiting) -> Place | None:
        """Gives a free slot and pages to a sequence that waits; None if they do not suffice.

        It gets pages for its tokens and its next chunk, and leaves pages for the next chunk of the
        others.
        """
        free = self.occupancy.free
        shards = {self.table.shard(slot): slot for slot in reversed(free)}
        order = sorted(shards, key=lambda shard: -self.table.pools[shard].available)
        reach = self._reach(len(waiting.tokens) - 1, waiting.resumed or waiting)
        keys = () if waiting.is_aside else self.keys(waiting)
        for evicts in (False, True):
            for shard in order:
                pool = self.table.pools[shard]
                while True:
                    found = pool.find(keys)
                    needed = self.table.count(reach) - len(found) + self._reserved(shard)
                    if needed <= pool.remaining(found):
                        self.table.begin(shards[shard], found, reach)
                        return Place(shards[shard], len(found))
                    if not (evicts and self._evict(shard)):
                        break
        return None

    def fills(self, waiting: Waiting, place: Place) -> list[PageFill]:
        """Lists the pages that the tokens of a sequence to start have to fill."""
        keys, tokens = self.keys(waiting), len(waiting.tokens)
        return self.table.fills(place.slot, place.shared, keys, tokens)

    def fitting(self) -> int:
        """Returns about how many of the waiting completions can have pages."""
        parked = sum(len(self.table.of(slot)) for slot in self.occupancy.parked)
        left = sum(pool.available for pool in self.table.pools) + parked
        fitting = 0
        for waiting in self.queue:
            count = self.table.count(self._reach(len(waiting.tokens) - 1, waiting))
            own = count - (len(waiting.tokens) - 1) // self.table.page_tokens
            for number in range(waiting.left):
                left -= own if number else count
                if left < 0:
                    return max(fitting, 1)
                fitting += 1
        return fitting

    def keys(self, waiting: Waiting) -> Sequence[bytes]:
        """Returns the keys of the pages of a waiting sequence's tokens."""
        if waiting.keys is None:
            content = (self.version,) if self.reuses else (self.version, waiting.ticket)
            waiting.keys = prefix_keys(
                content, waiting.tokens, self.table.page_tokens, waiting.request.images
            )
        return waiting.keys

    def steps(self, waiting: Waiting, shared: int) -> int | None:
        """Returns how many prompt tokens decode steps read after shared pages.

        None if a prefill is better: decode steps read at most as many tokens as the pages hold,
        over all completions, and at most `most_stepped` of each. They cannot read tokens that were
        sampled, or that stand for images.
        """
        if not self.reuses or waiting.resumed is not None:
            return None
        held, images = shared * self.table.page_tokens, waiting.request.images
        if images is not None and images.within(held, len(waiting.tokens)):
            return None
        rest = len(waiting.tokens) - 1 - held
        return rest if rest <= self.most_stepped and rest * waiting.left <= held > 0 else None

    def needs_no_prefill(self, waiting: Waiting) -> bool:
        """Says whether known pages make a prefill unnecessary, in some shard."""
        keys = self.keys(waiting)
        found = (len(pool.find(keys)) for pool in self.table.pools)
        return any(self.steps(waiting, shared) is not None for shared in found)

    def _reach(self, newest: int, of: Waiting | GrowingSequence) -> int:
        """Returns how many tokens a sequence's cache may hold after the next chunk."""
        # The last token that is sampled is never fed.
        most = len(of.request.prompt) + of.request.sampling.max_new_tokens - 1
        return min(newest + self.chunk_tokens, most)

    def _reserved(self, shard: int) -> int:
        """Returns the number of pages that a shard's sequences in flight may need next."""
        live = sum(self.table.shard(slot) == shard for slot in self.occupancy.live)
        return live * self.table.count(self.chunk_tokens)

    def _evict(self, shard: int) -> bool:
        """Evicts the sequence of a shard that was held longest; False if there is none."""
        for slot in self.occupancy.parked:
            if self.table.shard(slot) == shard:
                self.occupancy.evict(slot)
                self.tidy()
                return True
        return False

    def _youngest(self, shard: int) -> int:
        live = self.occupancy.live
        own = [slot for slot in live if self.table.shard(slot) == shard]
        return max(own, key=lambda slot: live[slot].age)

    def _interrupt(self, slot: int) -> None:
        """Puts a sequence in flight aside, to continue before any other that waits."""
        sequence = self.occupancy.interrupt(slot)
        copy = self.aside.put(slot, sequence.length - sequence.unread)
        self.queue.put_first(
            Waiting(sequence.ticket, sequence.request, sequence.seed, copy=copy, resumed=sequence)
        )
        self.preemptions += 1
        self.tidy()
