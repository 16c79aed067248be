"""Admission: waiting requests get the free slots of a batch."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt32

from rl_sync.rollout.batch import Batch, Start
from rl_sync.rollout.continuation import Continuations
from rl_sync.rollout.queue import Queue, Waiting
from rl_sync.rollout.request import CompletionRequest, draw_keys
from rl_sync.rollout.sequence import GrowingSequence, PromptRoutes
from rl_sync.rollout.slot_table import SlotTable
from rl_sync.rollout.slots import Prefix


class Admitted(NamedTuple):
    """The prefills of an admission.

    Attributes:
      prefixes: prefixes that the device computes.
      prompt_tokens: number of prompt tokens in them, without padding.
    """

    prefixes: list[Prefix]
    prompt_tokens: int


@dataclasses.dataclass(frozen=True)
class Admission:
    """Moves sequences from a queue into the slots of a batch."""

    batch: Batch
    queue: Queue
    occupancy: SlotTable
    continuations: Continuations

    def admit(self) -> Admitted:
        """Starts waiting completions in free slots, in the order of the queue.

        If there are too few free slots, held sequences are evicted.
        """
        self.occupancy.make_room(self.queue.completions)
        free = deque(self.occupancy.free)
        begun: list[tuple[Waiting, int, int]] = []
        used: dict[int, Prefix] = {}
        read: list[Prefix] = []
        prompt_tokens = 0
        while free and self.queue:
            waiting = self.queue.head
            if waiting.is_aside:
                self.continuations.restore(waiting, free.popleft())
                self.queue.drop_finished_head()
                continue
            if waiting.prefix is None:
                prompt_tokens += self._prefill(len(free))
                assert waiting.prefix is not None
                read.append(waiting.prefix)
            used[id(waiting.prefix)] = waiting.prefix
            while free and waiting.left:
                begun.append((waiting, waiting.next, free.popleft()))
                waiting.next += 1
            self.queue.drop_finished_head()
        starts: dict[int, list[Start]] = {name: [] for name in used}
        keys = draw_keys([(*waiting.seed, index) for waiting, index, _ in begun])
        for (waiting, index, slot), key in zip(begun, keys, strict=True):
            starts[id(waiting.prefix)].append(self.start(waiting, index, slot, key))
        for name, group in starts.items():
            self.batch.insert(used[name], group)
        return Admitted(read, prompt_tokens)

    def start(
        self, waiting: Waiting, index: int, slot: int, key: UInt32[np.ndarray, " 2"]
    ) -> Start:
        """Records on the host that a completion starts in a slot, and returns its `Start`."""
        request = waiting.request
        sequence = GrowingSequence(waiting.ticket, index, request)
        if waiting.prefix is not None and waiting.prefix.routes is not None:
            sequence.prompt_routes = PromptRoutes(waiting.prefix.routes, waiting.row)
        self.occupancy.start(slot, sequence)
        return Start(waiting.row, slot, request.prompt, request.sampling, key)

    def _prefill(self, free: int) -> int:
        """Prefills the first waiting prompt, and others of its size that will follow soon.

        Returns:
          The number of their tokens.
        """

        sizes = self.batch.sizes

        def width_of(request: CompletionRequest) -> int:
            return sizes.prompt_bucket(len(request.prompt))

        width = width_of(self.queue.head.request)
        read = self.queue.unread(
            free,
            lambda request: width_of(request) == width,
            lambda prompts: sizes.prefill_rows(prompts, width),
        )
        prompts = [waiting.request.prompt for waiting in read]
        self.queue.put_prefix(read, self.batch.prefill(prompts, width))
        return sum(map(len, prompts))
