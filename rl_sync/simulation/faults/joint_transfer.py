"""Collective transfers in the simulation: the real ends, over links between processes.

Both sides agree at the real meeting point, `rl_sync.weights.rendezvous.MeetingPoint`, which is with
the simulated master.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from rl_sync.simulation.event_queue import EventQueue
from rl_sync.simulation.faults.invariants import digest_of
from rl_sync.simulation.faults.processes import SimulatedProcess
from rl_sync.simulation.stand_ins import NumberedVersion
from rl_sync.transfers.collective import CollectivePublisher


class _LinkSide(NamedTuple):
    process: SimulatedProcess
    life: int
    weights: int | None
    then: Callable[[int | None], None]

    @property
    def is_there(self) -> bool:
        return self.process.is_alive and self.process.life == self.life


class SimulatedLinks:
    """Links from the trainer to each explorer, which both sides enter at once.

    Who is inside waits until the other comes. If one dies, the other notices after a while, unless
    it is ended before.

    Args:
      queue: virtual time.
      chance: source of durations.
    """

    def __init__(self, queue: EventQueue, chance: random.Random) -> None:
        self._queue, self._chance = queue, chance
        self._inside: dict[str, list[_LinkSide]] = {}

    def enter(
        self,
        explorer: str,
        process: SimulatedProcess,
        weights: int | None,
        then: Callable[[int | None], None],
    ) -> None:
        """Enters the link to an explorer.

        Args:
          explorer: name of the explorer.
          process: the trainer or the explorer.
          weights: what the trainer sends; None from the explorer.
          then: called with the weights at the end of the transfer.
        """
        sides = [one for one in self._inside.get(explorer, []) if one.is_there]
        sides.append(_LinkSide(process, process.life, weights, then))
        self._inside[explorer] = sides
        if len(sides) == 2:
            del self._inside[explorer]
            self._queue.after(self._chance.uniform(0.05, 0.5), functools.partial(self._end, sides))

    def _end(self, sides: list[_LinkSide]) -> None:
        left = [one for one in sides if one.is_there]
        if len(left) == 2:
            (sent,) = {one.weights for one in sides} - {None}
            for one in sides:
                one.process.after(0.0, functools.partial(one.then, sent))
            return
        for one in left:
            give_up = functools.partial(one.process.give_up, "the other side of a transfer died")
            one.process.after(self._chance.uniform(0.5, 5.0), give_up)


class GivingEnd(CollectivePublisher):
    """The trainer's end of collective transfers, over weights that are numbers."""

    def _waiting_version(self, version: int, params: Any) -> Any:
        """Waits until the weights are computed."""
        return NumberedVersion(version, params, digest_of(params.value))


class VirtualLink:
    """One side of a link; see `Link`.

    Args:
      process: the trainer's or the explorer's process.
      explorer: name of the explorer at the link's end.
    """

    def __init__(self, process: Any, explorer: str) -> None:
        self._process, self._explorer = process, explorer

    def send(self, params: Any) -> None:
        """Sends weights."""
        self._process.command(f"send weights to {self._explorer}")
        self._enter(params.value)

    def receive(self) -> int:
        """Receives weights."""
        self._process.command("receive weights")
        return int(self._enter(None))

    def _enter(self, weights: int | None) -> Any:
        process = self._process
        enter = process.world.links.enter
        return process.blocking(lambda then: enter(self._explorer, process, weights, then))
