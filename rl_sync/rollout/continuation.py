"""Continuations: held sequences go on after given tokens, in their slots or in others."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Int

from rl_sync.rollout.batch import Batch, Extension, Start
from rl_sync.rollout.kv_offload import KvOffload
from rl_sync.rollout.queue import Queue, Waiting
from rl_sync.rollout.request import draw_key
from rl_sync.rollout.sequence import GrowingSequence
from rl_sync.rollout.slot_table import Held, SlotTable


@dataclasses.dataclass
class Continuations:
    """The ways on for held sequences.

    One that is parked goes on in its slot. One whose cache is set aside waits for a slot, which
    gets the cache. Others wait for a prefill of all of their tokens.

    Attributes:
      batch, queue, occupancy, aside: the parts of the engine.
      most_stepped: the most given tokens that decode steps read; sequences with more are prefilled.
    """

    batch: Batch
    queue: Queue
    occupancy: SlotTable
    aside: KvOffload
    most_stepped: int
    _extensions: list[Extension] = dataclasses.field(default_factory=list)

    def begin(self, held: Held, waiting: Waiting, given: Int[np.ndarray, " T"]) -> None:
        """Lets a sequence go on that is held no longer.

        Args:
          waiting: the request whose prompt has its tokens, and behind them those given.
        """
        if len(given) > self.most_stepped:
            self.aside.forget(held.copy)
            self.queue.put_ahead(waiting)
        elif held.slot is None:
            waiting.copy, waiting.given = held.copy, len(given)
            self.aside.use_soon(held.copy)
            self.queue.put_ahead(waiting)
        else:
            self._start(waiting, held.slot, given)

    def restore(self, waiting: Waiting, slot: int) -> None:
        """Starts a request in a slot with its cache that is set aside."""
        assert waiting.copy is not None, "its cache is set aside"
        prompt = waiting.request.prompt
        before, given = np.split(prompt, [len(prompt) - waiting.given])
        waiting.next += 1
        key = draw_key(waiting.seed, 0)
        start = Start(0, slot, before, waiting.request.sampling, key)
        self.batch.insert_copy(self.aside.restore(waiting.copy), start)
        self._start(waiting, slot, given)

    def flush(self) -> tuple[int, int]:
        """Has the device extend the sequences that were started since the last call.

        Returns:
          The number of tokens that they are given, and of those whose cache they keep.
        """
        extensions, self._extensions = self._extensions, []
        if extensions:
            self.batch.extend(extensions, self.most_stepped)
        given = sum(len(extension.given) for extension in extensions)
        return given, sum(extension.newest for extension in extensions)

    def _start(self, waiting: Waiting, slot: int, given: Int[np.ndarray, " T"]) -> None:
        request = waiting.request
        sequence = GrowingSequence(waiting.ticket, 0, request, unread=len(given))
        self.occupancy.start(slot, sequence)
        newest = len(request.prompt) - len(given) - 1
        key = draw_key(waiting.seed, 0)
        self._extensions.append(Extension(slot, newest, given, request.sampling, key))
