"""Collective transfers in the simulation: both sides agree at the master, then enter together.

The meeting point is the real one, `rl_sync.weights.rendezvous.MeetingPoint`. It is asked without
waiting; the simulated master lets callers wait.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from rl_sync.messages.weight_calls import Grant, Request
from rl_sync.simulation.event_queue import EventQueue
from rl_sync.simulation.faults.drawn_run import MASTER
from rl_sync.simulation.faults.invariants import digest_of
from rl_sync.simulation.faults.processes import Links, SimulatedProcess
from rl_sync.weights.rendezvous import Meeting, MeetingPoint

_SLICE_SECS, _POLL_SECS, _PAUSE_SECS = 0.5, 1.0, 0.2
_RECEIVE_SECS = 3.0
"""Time after which an explorer withdraws its request, and looks whether it still needs one."""


class WeightsRequested(NamedTuple):
    """An explorer is ready to receive a version; see `MeetingPoint.ask`."""

    explorer: int
    exactly: int | None
    at_least: int | None
    number: int


class RequestWithdrawn(NamedTuple):
    """An explorer does not wait any longer; see `MeetingPoint.withdraw`."""

    ticket: int


class RequestGranted(NamedTuple):
    """The trainer grants a request; see `MeetingPoint.grant`."""

    request: Request
    grant: Grant


class MeetingReset(NamedTuple):
    """One side of the transfers has died; see `MeetingPoint.reset`."""


class MeetingLeft(NamedTuple):
    """An explorer has died; see `MeetingPoint.leave`."""

    explorer: int


class GrantAwaited(NamedTuple):
    """An explorer waits for the grant of a ticket; see `MeetingPoint.granted`."""

    ticket: int


class RequestsAwaited(NamedTuple):
    """The trainer waits for requests; see `MeetingPoint.waiting`."""


class AskFinished(NamedTuple):
    """An explorer asks whether the trainer has made its last step."""


MeetingEvent = WeightsRequested | RequestWithdrawn | RequestGranted | MeetingReset | MeetingLeft
"""A call that changes the meeting point."""


def met(meeting: Meeting, event: MeetingEvent) -> tuple[Meeting, Any]:
    """Applies a call to a meeting point; returns its content afterwards, and the answer."""
    point = MeetingPoint(meeting)
    answer: Any = None
    match event:
        case WeightsRequested(explorer, exactly, at_least, number):
            answer = point.ask(explorer, exactly, at_least, number)
        case RequestWithdrawn(ticket):
            answer = point.withdraw(ticket)
        case RequestGranted(request, grant):
            answer = point.grant(request, *grant)
        case MeetingReset():
            point.reset()
        case MeetingLeft(explorer):
            point.leave(explorer)
    return point.content(), answer


def seen(meeting: Meeting, message: GrantAwaited | RequestsAwaited) -> Any:
    """Returns the grant or the requests that a call waits for; None if there are none."""
    point = MeetingPoint(meeting)
    if isinstance(message, GrantAwaited):
        return point.granted(message.ticket, 0.0)
    return point.waiting(0.0) or None


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


class GivingSide:
    """The trainer's side of collective transfers, as `CollectivePublisher` is.

    Args:
      trainer: the trainer's process.
      links: links to the explorers.
    """

    def __init__(self, trainer: SimulatedProcess, links: Links) -> None:
        self._trainer, self._links = trainer, links
        self._held: tuple[int, int] | None = None

    def hold(self, version: int, weights: int) -> None:
        """Has a version to give from now on."""
        self._held = version, weights

    def give_to_all(self, explorers: set[int], until: float, then: Callable[[], None]) -> None:
        """Waits for each of some explorers, and gives it the version."""
        if not explorers:
            then()
            return
        now = self._trainer.world.queue.now_secs
        if now > until:
            self._trainer.give_up(f"has waited too long for {explorers}")

        def given(served: set[int]) -> None:
            left = explorers - served
            again = functools.partial(self.give_to_all, left, until, then)
            self._trainer.after(0.0 if served or not left else _PAUSE_SECS, again)

        self._ask(_SLICE_SECS, given)

    def serve(self, then: Callable[[], None]) -> None:
        """Gives the version to all who wait for it now."""
        if self._held is None:
            then()
        else:
            self._ask(0.0, lambda _: then())

    def _ask(self, poll_secs: float, then: Callable[[set[int]], None]) -> None:
        def ready(requests: list[Request] | None) -> None:
            self._give(list(requests or ()), set(), then)

        self._trainer.call(MASTER, RequestsAwaited(), ready, poll_secs=poll_secs)

    def _give(
        self, requests: list[Request], served: set[int], then: Callable[[set[int]], None]
    ) -> None:
        """Grants requests, and enters the link to each explorer, one after the other."""
        assert self._held is not None
        version, weights = self._held
        fitting = [one for one in requests if one.accepts(version)]
        if not fitting:
            then(served)
            return
        request, *rest = fitting

        def granted(is_there: bool) -> None:
            if not is_there:  # It has withdrawn its request.
                self._give(rest, served, then)
                return
            name = f"explorer{request.explorer}"
            self._trainer.command(f"send version {version} to {name}")
            self._links.enter(
                name,
                self._trainer,
                weights,
                lambda _: self._give(rest, served | {request.explorer}, then),
            )

        grant = RequestGranted(request, Grant(version, digest_of(weights)))
        self._trainer.call(MASTER, grant, granted)


class TakingSide:
    """An explorer's side of collective transfers, as `CollectivePuller` is.

    Args:
      explorer: the explorer's process.
      number: its number.
      links: links to the explorers.
      received: called with a version and its weights.
      late: called if there is no such version in time.
      over: called if there will be none, as the trainer has made its last step.
    """

    def __init__(
        self,
        explorer: SimulatedProcess,
        number: int,
        links: Links,
        received: Callable[[int, int], None],
        late: Callable[[], None],
        over: Callable[[], None],
    ) -> None:
        self._explorer, self._number, self._links = explorer, number, links
        self._received, self._late, self._over = received, late, over
        self._requests = 0

    @property
    def _now(self) -> float:
        return self._explorer.world.queue.now_secs

    def pull(self, version: int, exactly: bool) -> None:
        """Asks for a version or, unless `exactly`, for a newer one; see `MeetingPoint.ask`."""
        self._requests += 1
        number = 1000 * self._explorer.life + self._requests
        wanted, at_least = (version, None) if exactly else (None, version)
        until = self._now + _RECEIVE_SECS
        ask = WeightsRequested(self._number, wanted, at_least, number)
        self._explorer.call(MASTER, ask, lambda ticket: self._await(ticket, until))

    def _await(self, ticket: int, until: float) -> None:
        left = until - self._now

        def answered(grant: Grant | None) -> None:
            if grant is None:
                self._await(ticket, until)
            else:
                self._enter(grant)

        if left > 0:
            awaited, poll_secs = GrantAwaited(ticket), min(left, _POLL_SECS)
            self._explorer.call(MASTER, awaited, answered, poll_secs=poll_secs)
            return

        def answered_finally(is_finished: bool) -> None:
            (self._over if is_finished else self._late)()

        def withdrawn(grant: Grant | None) -> None:
            if grant is None:
                self._explorer.call(MASTER, AskFinished(), answered_finally)
            else:  # It came before, so the trainer enters.
                self._enter(grant)

        self._explorer.call(MASTER, RequestWithdrawn(ticket), withdrawn)

    def _enter(self, grant: Grant) -> None:
        def arrived(weights: int | None) -> None:
            if weights is None or digest_of(weights) != grant.digest:
                self._explorer.give_up(f"has received other weights than those of {grant}")
            else:
                self._received(grant.version, weights)

        self._explorer.command(f"receive version {grant.version}")
        self._links.enter(self._explorer.name, self._explorer, None, arrived)
