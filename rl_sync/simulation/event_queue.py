"""Virtual time: actions in the order of their times, without waiting.

Two simulations build on it: of faults, and of the speed of schedules.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

Action = Callable[[], None]


class EventQueue:
    """Runs actions at virtual times.

    Actions of the same time run in an order that depends on the seed alone.

    Args:
      seed: seed of the order of simultaneous actions; None for the order in which they were added.

    Attributes:
      now_secs: the virtual time.
      handled: number of actions that have run.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.now_secs = 0.0
        self.handled = 0
        self._random = None if seed is None else random.Random(seed)
        self._added = 0
        self._heap: list[tuple[float, float, int, Action]] = []

    def at(self, time_secs: float, action: Action) -> None:
        """Adds an action at a time, or now if that time has passed."""
        tie = 0.0 if self._random is None else self._random.random()
        self._added += 1
        heapq.heappush(self._heap, (max(time_secs, self.now_secs), tie, self._added, action))

    def after(self, delay_secs: float, action: Action) -> None:
        """Adds an action after a delay."""
        self.at(self.now_secs + delay_secs, action)

    def step(self) -> bool:
        """Runs the next action; returns False if there is none."""
        if not self._heap:
            return False
        self.now_secs, _, _, action = heapq.heappop(self._heap)
        self.handled += 1
        action()
        return True

    def run(self, until_secs: float) -> bool:
        """Runs all actions up to a time; returns False if none is left after it."""
        while self._heap and self._heap[0][0] <= until_secs:
            self.step()
        self.now_secs = max(self.now_secs, until_secs)
        return bool(self._heap)
