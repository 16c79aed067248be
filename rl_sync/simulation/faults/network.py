"""A network that delays, reorders, duplicates and drops messages, and falls apart."""

from __future__ import annotations

import random
from collections.abc import Callable

from rl_sync.simulation.event_queue import EventQueue

_LEAST_SECS, _MOST_SECS = 0.001, 0.01
_SLOW_SECS = 3.0
_SHARE_SLOW, _SHARE_DOUBLED, _SHARE_LOST, _SHARE_DAMAGED = 0.2, 0.15, 0.1, 0.3


class SimulatedNetwork:
    """Carries messages between processes.

    Args:
      queue: the queue of events.
      chance: source of delays and faults.
      kinds: fault kinds of the run; those of the network are `delay`, `duplicate`, `loss` and
        `damage`.

    Attributes:
      is_healed: whether nothing is delayed, doubled or lost any more.
      sent, lost, doubled: numbers of messages.
    """

    def __init__(self, queue: EventQueue, chance: random.Random, kinds: frozenset[str]) -> None:
        self._queue, self._chance, self._kinds = queue, chance, kinds
        self._cut: dict[str, float] = {}
        self.is_healed = False
        self.sent = self.lost = self.doubled = 0

    def send(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        """Sends a message, which arrives as `arrive`: once, never, or twice."""
        self.sent += 1
        if self.is_healed:
            self._queue.after(_LEAST_SECS, arrive)
            return
        copies = 1
        if "loss" in self._kinds and self._chance.random() < _SHARE_LOST:
            self.lost += 1
            copies = 0
        elif "duplicate" in self._kinds and self._chance.random() < _SHARE_DOUBLED:
            self.doubled += 1
            copies = 2
        for _ in range(copies):
            self._queue.after(self._delay_secs(), lambda: self._deliver(source, target, arrive))

    def isolate(self, process: str, secs: float) -> None:
        """Lets nothing through from and to a process for a time."""
        self._cut[process] = self._queue.now_secs + secs

    def damages(self) -> bool:
        """Says whether weights arrive with wrong bytes."""
        damages = "damage" in self._kinds and not self.is_healed
        return damages and self._chance.random() < _SHARE_DAMAGED

    def heal(self) -> None:
        """Ends all faults."""
        self.is_healed = True
        self._cut.clear()

    def _delay_secs(self) -> float:
        if "delay" in self._kinds and self._chance.random() < _SHARE_SLOW:
            return self._chance.uniform(_LEAST_SECS, _SLOW_SECS)
        return self._chance.uniform(_LEAST_SECS, _MOST_SECS)

    def _deliver(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        cut = max(self._cut.get(source, 0.0), self._cut.get(target, 0.0))
        if cut > self._queue.now_secs:
            self.lost += 1
        else:
            arrive()
