"""Workers that judge completions in a simulated run."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from rl_sync.simulation.event_queue import Action, EventQueue


class JudgePool:
    """Judges completions in the order in which they come, each by the first worker that is free.

    Args:
      queue: virtual time.
      workers: number of workers, at least 1.
    """

    def __init__(self, queue: EventQueue, workers: int) -> None:
        self._queue = queue
        self._free_secs = [0.0] * workers

    def judge(self, secs: Iterable[float], then: Action) -> None:
        """Judges completions.

        Args:
          secs: seconds that each completion takes.
          then: called when all are judged.
        """
        now = end = self._queue.now_secs
        for one in secs:
            done = max(now, self._free_secs[0]) + one
            heapq.heapreplace(self._free_secs, done)
            end = max(end, done)
        self._queue.at(end, then)
