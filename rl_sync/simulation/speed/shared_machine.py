"""Work in virtual time on devices of one's own, or on cores that roles share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rl_sync.simulation.event_queue import Action, EventQueue
from rl_sync.simulation.speed.workload import SharedCores

_DONE_SECS = 1e-9


@dataclasses.dataclass(eq=False)
class _Work:
    is_trainer: bool
    left_secs: float
    then: Action


class SharedMachine:
    """Ends each piece of work once it has got as much time as it takes alone.

    Args:
      queue: virtual time.
      shared: cores that the roles share; None if each has devices of its own.
    """

    def __init__(self, queue: EventQueue, shared: SharedCores | None) -> None:
        self._queue, self._shared = queue, shared
        self._under_way: list[_Work] = []
        self._since_secs, self._plan = 0.0, 0

    def work(self, is_trainer: bool, secs: float, then: Callable[[], None]) -> None:
        """Begins a piece of work of a role.

        Args:
          is_trainer: whether the role is the trainer, and not an explorer.
          secs: seconds that it takes alone.
          then: called at its end.
        """
        if self._shared is None:
            self._queue.after(secs, then)
            return
        self._account()
        self._under_way.append(_Work(is_trainer, secs, then))
        self._schedule()

    def _rate(self) -> float:
        assert self._shared is not None
        trainers = sum(one.is_trainer for one in self._under_way)
        return self._shared.rate(trainers, len(self._under_way) - trainers)

    def _account(self) -> None:
        """Subtracts the time that has passed from what is left of each piece of work."""
        done = (self._queue.now_secs - self._since_secs) * self._rate()
        for one in self._under_way:
            one.left_secs -= done
        self._since_secs = self._queue.now_secs

    def _schedule(self) -> None:
        """Plans the next end; plans from before the last change are void."""
        self._plan += 1
        if self._under_way:
            plan, least = self._plan, min(one.left_secs for one in self._under_way)
            self._queue.after(max(0.0, least) / self._rate(), lambda: self._end(plan))

    def _end(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._account()
        done = [one for one in self._under_way if one.left_secs <= _DONE_SECS]
        self._under_way = [one for one in self._under_way if one.left_secs > _DONE_SECS]
        self._schedule()
        for one in done:
            one.then()
