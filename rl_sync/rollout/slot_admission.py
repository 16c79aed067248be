"""Admission: waiting requests get the free slots of a batch, whose number follows them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Array, Int

from rl_sync.rollout.batch import Batch, Start
from rl_sync.rollout.continuation import Continuations
from rl_sync.rollout.paging.page_supply import PageSupply, Place
from rl_sync.rollout.paging.page_table import PageFill
from rl_sync.rollout.queue import Queue, Waiting
from rl_sync.rollout.request import draw_keys
from rl_sync.rollout.sequence import GrowingSequence, PromptRoutes
from rl_sync.rollout.slot_table import SlotTable

_REFILLED_SHARE = 8
_PATIENCE_CHUNKS = 8


class Admitted(NamedTuple):
    """The work of an admission.

    Attributes:
      prompts: tokens of each prefix that the device computes.
      prompt_tokens: number of tokens in them, without padding.
      stepped_tokens: number of prompt tokens that decode steps will read.
      reused_tokens: number of prompt tokens whose pages were known.
    """

    prompts: list[Int[Array, "R P"]]
    prompt_tokens: int
    stepped_tokens: int
    reused_tokens: int


class _Begun(NamedTuple):
    """A sequence that has a slot.

    Attributes:
      waiting, sequence: its request, and the sequence.
      slot: its slot.
      fills: pages that its tokens have to fill.
    """

    waiting: Waiting
    sequence: GrowingSequence
    slot: int
    fills: list[PageFill]


@dataclasses.dataclass(frozen=True)
class Admission:
    """Moves sequences from a queue into the slots of a batch, and chooses their number.

    Attributes:
      batch, queue, occupancy, continuations: parts of the engine.
      supply: pages for sequences; None if each slot has a cache of its own.
    """

    batch: Batch
    queue: Queue
    occupancy: SlotTable
    continuations: Continuations
    supply: PageSupply | None = None

    @property
    def fitting(self) -> int:
        """Number of waiting completions that memory has room for."""
        return self.queue.completions if self.supply is None else self.supply.fitting()

    def rows(self, chunks: int) -> int:
        """Returns the number of slots for the next chunk.

        The slots have room for the unfinished sequences, and for those that were parked recently.
        So a held sequence keeps its slot between two turns, but does not keep a batch large for
        long.

        Args:
          chunks: number of chunks so far.
        """
        unfinished = self.fitting + len(self.occupancy.live)
        parked = self.occupancy.parked_after(chunks - _PATIENCE_CHUNKS)
        wanted = max(unfinished + parked, self.occupancy.least_rows)
        rows, now = self.batch.sizes.row_bucket(wanted), self.occupancy.rows
        return rows if rows > now or self._may_shrink() else now

    def enough(self) -> int:
        """Returns the number of live rows at which a chunk ends early.

        A chunk ends early so that other requests can start, or the batch can shrink. While requests
        wait, it does not end for every row that becomes free, since each end costs a round trip.
        """
        live, rows = len(self.occupancy.live), self.occupancy.rows
        if self.queue:
            return live - max(1, live // _REFILLED_SHARE)
        smaller = self.batch.sizes.next_smaller(rows)
        return smaller if live > smaller and self._may_shrink() else 0

    def _may_shrink(self) -> bool:
        """Says whether more than one chunk is left, so that compiling a smaller batch pays."""
        longest = max((sequence.left for sequence in self.occupancy.live.values()), default=0)
        return max(longest, self.queue.most_new_tokens) > self.batch.options.chunk_tokens

    def admit(self) -> Admitted:
        """Starts waiting completions in free slots, in the order of the queue.

        If there are too few free slots or pages, held sequences are evicted.
        """
        self.occupancy.make_room(self.fitting)
        if self.supply is not None:
            self.supply.tidy()
        begun: dict[int, list[_Begun]] = {}
        known: list[_Begun] = []
        read: list[Int[Array, "R P"]] = []
        prompt_tokens = 0
        free = deque(self.occupancy.free)
        while self.queue and (place := self._place(self.queue.head, free)):
            waiting = self.queue.head
            if waiting.is_aside:
                self.continuations.restore(waiting, place.slot)
                self.queue.drop_finished_head()
                continue
            steps = None
            if self.supply is not None and waiting.prefix is None:
                steps = self.supply.steps(waiting, place.shared)
            if steps is None and waiting.prefix is None:
                self._insert(begun)  # So that few prefixes are in memory at once.
                prompt_tokens += self._prefill(1 + len(free))
                assert waiting.prefix is not None
                read.append(waiting.prefix.tokens)
            sequence = waiting.resumed
            if sequence is None or not sequence.tokens:
                sequence = self.sequence(waiting, steps or 0)
            self.occupancy.start(place.slot, sequence)
            waiting.next += 1
            fills = list[PageFill]()
            if self.supply is not None and waiting.prefix is not None:
                fills = self.supply.fills(waiting, place)
            one = _Begun(waiting, sequence, place.slot, fills)
            (known if steps is not None else begun.setdefault(id(waiting.prefix), [])).append(one)
            self.queue.drop_finished_head()
        self._insert(begun)
        if known:
            self.batch.insert_shared(self._starts(known))
        stepped = sum(one.sequence.unread for one in known)
        reused = sum(len(one.waiting.tokens) - 1 - one.sequence.unread for one in known)
        return Admitted(read, prompt_tokens, stepped, reused)

    def sequence(self, waiting: Waiting, unread: int) -> GrowingSequence:
        """Makes the next sequence of a waiting request.

        Args:
          unread: number of its prompt's last tokens that decode steps will read.
        """
        index = waiting.indices[waiting.next]
        made = GrowingSequence(waiting.ticket, index, waiting.request, waiting.seed, unread)
        if waiting.prefix is not None and waiting.prefix.routes is not None:
            made.prompt_routes = PromptRoutes(waiting.prefix.routes, waiting.row)
        return made

    def _place(self, waiting: Waiting, free: deque[int]) -> Place | None:
        """Takes a slot for the next sequence; None if there is none, or too few pages."""
        if self.supply is None:
            return Place(free.popleft(), 0) if free else None
        if place := self.supply.place(waiting):
            with contextlib.suppress(ValueError):  # An eviction has just freed it.
                free.remove(place.slot)
        return place

    def _insert(self, begun: dict[int, list[_Begun]]) -> None:
        """Inserts prefixes into the slots of the sequences that begin with them, and drops both."""
        for group in begun.values():
            prefix = group[0].waiting.prefix
            assert prefix is not None
            self.batch.insert(prefix, self._starts(group))
        begun.clear()

    def _starts(self, begun: Sequence[_Begun]) -> list[Start]:
        keys = draw_keys([(*one.waiting.seed, one.sequence.index) for one in begun])
        return [
            Start(
                source=waiting.row,
                target=slot,
                tokens=waiting.tokens,
                sampling=sequence.request.sampling,
                key=key,
                prompt_tokens=len(waiting.request.prompt),
                newest=len(waiting.tokens) - 1 - sequence.unread,
                fills=fills,
            )
            for (waiting, sequence, slot, fills), key in zip(begun, keys, strict=True)
        ]

    def _prefill(self, free: int) -> int:
        """Prefills the first waiting prompt, and others of its size that will follow soon.

        Args:
          free: number of free slots, with the slot of the first.

        Returns:
          The number of their tokens.
        """
        sizes, head, supply = self.batch.sizes, self.queue.head, self.supply

        def width_of(waiting: Waiting) -> int:
            return sizes.prompt_bucket(len(waiting.tokens))

        width = width_of(head)

        def alike(waiting: Waiting) -> bool:
            if width_of(waiting) != width:
                return False
            return waiting is head or supply is None or not supply.needs_no_prefill(waiting)

        read = self.queue.unread(
            min(free, 1 + self.fitting), alike, lambda prompts: sizes.prefill_rows(prompts, width)
        )
        prompts = [waiting.tokens for waiting in read]
        images = [waiting.request.images for waiting in read]
        self.queue.put_prefix(read, self.batch.prefill(prompts, width, images))
        return sum(map(len, prompts))
