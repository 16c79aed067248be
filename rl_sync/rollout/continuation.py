"""Continuations: held sequences continue after given tokens, in their slots or in others.

Interrupted sequences continue like held ones whose caches are offloaded.
"""

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
    """The three ways in which held sequences continue.

    A sequence that is parked continues in its slot. A sequence whose cache is offloaded waits for a
    slot, into which the cache is copied. Other sequences wait for a prefill of all their tokens, as
    do those that images follow: decode steps cannot read tokens that attend to later ones.

    Attributes:
      batch, queue, occupancy, aside: parts of the engine.
      most_stepped: maximum number of given tokens that decode steps read; a sequence with more is
        prefilled again.
    """

    batch: Batch
    queue: Queue
    occupancy: SlotTable
    aside: KvOffload
    most_stepped: int
    _extensions: list[Extension] = dataclasses.field(default_factory=list)
    _reused_tokens: int = 0

    def begin(self, held: Held, waiting: Waiting, given: Int[np.ndarray, " T"]) -> None:
        """Lets a sequence continue; it is held no longer.

        Args:
          waiting: the request whose prompt is the sequence and then the given tokens.
        """
        images = waiting.request.images
        shown = images is not None and bool(images.within(len(held.tokens), len(waiting.tokens)))
        if len(given) > self.most_stepped or shown:
            self.aside.forget(held.copy)
            self.queue.put_ahead(waiting)
        elif held.slot is None:
            waiting.copy, waiting.given = held.copy, len(given)
            self.aside.use_soon(held.copy)
            self.queue.put_ahead(waiting)
        else:
            sequence = GrowingSequence(
                waiting.ticket, 0, waiting.request, waiting.seed, unread=len(given)
            )
            self.occupancy.start(held.slot, sequence)
            self._extend(sequence, held.slot, given)

    def restore(self, waiting: Waiting, slot: int) -> None:
        """Starts or resumes a sequence in a slot with its offloaded cache."""
        assert waiting.copy is not None, "its cache is set aside"
        request, pages = waiting.request, self.batch.pages
        sequence = waiting.resumed or GrowingSequence(
            waiting.ticket, 0, request, waiting.seed, unread=waiting.given
        )
        before, given = np.split(waiting.tokens, [len(waiting.tokens) - sequence.unread])
        waiting.next += 1
        start = Start(
            source=0,
            target=slot,
            tokens=before,
            sampling=request.sampling,
            key=draw_key(waiting.seed, sequence.index),
            prompt_tokens=min(len(before), len(request.prompt)),
            newest=len(before) - 1,
            fills=pages.fills(slot, 0, (), len(before)) if pages else (),
        )
        self.batch.insert_copy(self.aside.restore(waiting.copy), start)
        self.occupancy.start(slot, sequence)
        if sequence.tokens:
            self._reused_tokens += len(before) - 1
        else:
            self._extend(sequence, slot, given)

    def flush(self) -> tuple[int, int]:
        """Runs the extension of all sequences that were started since the last call.

        Returns:
          The number of their given tokens, and the number of tokens whose cache was reused.
        """
        extensions, self._extensions = self._extensions, []
        reused, self._reused_tokens = self._reused_tokens, 0
        if extensions:
            self.batch.extend(extensions, self.most_stepped)
        given = sum(len(extension.given) for extension in extensions)
        return given, reused + sum(extension.newest for extension in extensions)

    def _extend(self, sequence: GrowingSequence, slot: int, given: Int[np.ndarray, " T"]) -> None:
        prompt, key = sequence.request.prompt, draw_key(sequence.seed, sequence.index)
        newest = len(prompt) - len(given) - 1
        sampling = sequence.request.sampling
        self._extensions.append(Extension(slot, newest, given, sampling, key))
