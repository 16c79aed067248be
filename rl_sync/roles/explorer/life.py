"""The explorer's life: decides what an explorer does next, as one generator.

It yields commands (`commands`) and is sent the events that they end with, so it reads as the
timeline of a run. The driver in `loop` executes the commands on processes and files; the simulation
of faults executes the same ones in virtual time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from rl_sync.messages.events import Finish, GrantEvaluation, HoldBack, LeaseGrant
from rl_sync.roles.explorer.commands import (
    Answer,
    Ask,
    AwaitMeasured,
    AwaitVersion,
    BeginEvaluation,
    BeginRollout,
    BeginWait,
    CheckDeadline,
    CheckDelivery,
    ChunkEnded,
    Deliver,
    EndRollout,
    EndWait,
    Evaluate,
    EvaluationBegun,
    ExplorerCommand,
    GiveUp,
    GoOn,
    LeaveRun,
    Look,
    Looked,
    NotPulled,
    Pause,
    Pull,
    RenewDeadline,
    RolledOut,
    RollOut,
    StartDeadline,
    TellFailure,
    TellTokens,
    WorkAnswered,
)
from rl_sync.types import Lease

POLL_SECS = 1.0
"""Time that one request waits: for work at the master, or for a version."""

PAUSE_SECS = 0.02
"""Time between two requests for a version, so that a stop is noticed immediately."""

IN_FLIGHT_POLL_SECS = 0.1
"""Time between two looks for newer weights while completions are in flight."""

NO_ROOM_SECS = 0.02
"""Time between two requests for leases while the master has none and others are in flight."""

TRAINER = "the trainer"

T = TypeVar("T")
Commands = Generator[ExplorerCommand, Any, T]
"""Commands in their order; each is sent what it ends with. The last is followed by a T."""


@dataclasses.dataclass(frozen=True)
class ExplorerPlan:
    """Settings that an explorer's decisions depend on.

    Attributes:
      groups: maximum number of groups in flight.
      in_parts, streams: see `Explorer`.
      swaps: whether weights may change while completions are in flight.
      is_elastic: whether the trainer may die, and is started again.
      tells: whether the master is told the tokens of completions in flight.
    """

    groups: int
    in_parts: bool = False
    streams: bool = False
    swaps: bool = False
    is_elastic: bool = False
    tells: bool = False


@dataclasses.dataclass
class ExplorerLife:
    """An explorer from its first request for work to its end.

    Attributes:
      plan: settings.
      version: version of the weights in use; None before the first.
    """

    plan: ExplorerPlan
    version: int | None = None
    _unfinished: int = 0
    _evaluating: int = 0
    _room: int | None = None
    _next_look_secs: float = 0.0
    _next_request_secs: float = 0.0

    def commands(self) -> Commands[None]:
        """Works until the master says that there is nothing more to do."""
        answer: Answer | None = None
        has_evaluated = False  # Evaluations are judged after they are handed in.
        while True:
            if answer is None or isinstance(answer, HoldBack):
                answer = yield from self._work()
            if isinstance(answer, Finish):
                while self._evaluating:
                    self._evaluating = yield Evaluate()
                if has_evaluated:
                    yield AwaitMeasured()
                yield LeaveRun()
                return
            assert not isinstance(answer, HoldBack)
            if isinstance(answer, GrantEvaluation):
                begun: EvaluationBegun = yield BeginEvaluation(answer.version)
                self._evaluating, self.version = begun.evaluating, begun.version
                has_evaluated, answer = True, None
                continue
            if not suits(answer, self.version):
                self.version = yield from self._pulled(answer)
            answer = yield from self._rollout(answer)

    def _work(self) -> Commands[Answer]:
        """Asks for work, and waits at the master as long as it holds the explorer back.

        If evaluations are in progress, it goes on with them instead of waiting there.
        """
        yield StartDeadline("prompts", "the master, which waits for the trainer")
        request = Ask() if self.version is None else self._request((yield Look()))
        yield CheckDelivery()
        asked: WorkAnswered = yield request
        held: HoldBack | None = None
        while isinstance(answer := asked.answer, HoldBack):
            if held is not None and answer.trainer_step != held.trainer_step:
                yield RenewDeadline()  # A long SFT must not end the wait, as long as it goes on.
            if held is None or answer.reason != held.reason:
                if held is not None:
                    yield EndWait()
                yield BeginWait(answer.reason)
            held = answer
            yield CheckDeadline()
            yield CheckDelivery()
            poll_secs = POLL_SECS
            if self._evaluating:
                self._evaluating, poll_secs = (yield Evaluate()), 0.0
            asked = yield dataclasses.replace(
                request, poll_secs=poll_secs, evaluating=self._evaluating
            )
        if held is not None:
            yield EndWait()
        return answer

    def _pulled(self, grant: LeaseGrant) -> Commands[int]:
        """Waits for the version of a grant, receives it, and returns the one that arrived."""
        wanted = grant.version
        if not self.plan.is_elastic and self.version is not None and wanted < self.version:
            # Whoever is started anew gets all versions again, from a snapshot that is old enough.
            yield GiveUp(_gone_text(wanted, self.version))
        yield StartDeadline(f"the weights of version {wanted}", TRAINER)
        newest: int = yield AwaitVersion(wanted)
        if newest < wanted:
            yield BeginWait("synchronization", wanted)
            while (newest := (yield AwaitVersion(wanted, POLL_SECS))) < wanted:
                yield CheckDeadline()
                yield Pause(PAUSE_SECS)
            yield EndWait()
        since: float | None = None
        while True:
            found: int | NotPulled = yield Pull(wanted, grant.exactly, grant.step, since)
            if isinstance(found, int):
                return found
            since = found.since_secs
            if found.why is not None and not self.plan.is_elastic:
                yield GiveUp(found.why)
            if found.why is not None:
                # A trainer that is started again offers the version again.
                yield TellFailure(found.why)
            yield CheckDeadline()
            if found.why is not None:
                yield Pause(POLL_SECS)

    def _rollout(self, grant: LeaseGrant) -> Commands[Answer | None]:
        """Rolls out, and returns the answer that ended a streaming rollout, if one did.

        A streaming rollout ends after as many groups as fill the slots, or when the master's answer
        is not leases for the current weights. A rollout in parts ends when nothing is in flight.
        """
        plan, leases = self.plan, grant.leases
        yield BeginRollout(grant.step)
        whole = 0
        while True:
            part = yield from self._part(leases)
            whole += part
            leases = []
            goes_on = whole < plan.groups if plan.streams else plan.in_parts and self._unfinished
            if not goes_on:
                break
            if part:
                yield Deliver()
            yield CheckDelivery()
            if plan.streams:
                answer = yield from self._more()
                if isinstance(answer, LeaseGrant) and suits(answer, self.version):
                    leases = answer.leases
                elif answer is not None:
                    yield EndRollout()
                    return answer
        yield EndRollout()
        if part:
            yield Deliver()
        return None

    def _more(self) -> Commands[Answer | None]:
        """Asks for work between two parts, if there is room or there are newer weights."""
        facts: Looked = yield Look(self._next_look_secs if self.plan.swaps else None)
        may_ask = bool(self._room) and facts.now_secs >= self._next_request_secs
        has_newer = self._sees_newer(facts)
        if self._unfinished and not has_newer and not may_ask:
            return None
        asked: WorkAnswered = yield self._request(facts)
        if isinstance(asked.answer, LeaseGrant) and not asked.answer.leases:
            self._next_request_secs = asked.now_secs + NO_ROOM_SECS
        return asked.answer

    def _part(self, leases: Sequence[Lease]) -> Commands[int]:
        """Generates the next part of a rollout; returns the number of groups that it finished.

        Newer weights may be taken meanwhile. A streaming explorer looks for them between its parts
        instead.
        """
        plan = self.plan
        swaps = plan.swaps and not plan.streams
        in_chunks = swaps or (plan.tells and not plan.in_parts)
        event: RolledOut | ChunkEnded = yield RollOut(tuple(leases), in_chunks)
        while isinstance(event, ChunkEnded):
            if plan.tells:
                yield TellTokens()
            if swaps and self._sees_newer((yield Look(self._next_look_secs))):
                assert self.version is not None
                newer: int | NotPulled = yield Pull(self.version + 1, exactly=False, step=None)
                if isinstance(newer, int):  # Otherwise it was withdrawn.
                    self.version = newer
            event = yield GoOn()
        self._note(event)
        if plan.tells and self._unfinished:
            yield TellTokens()
        return event.whole

    def _note(self, event: RolledOut) -> None:
        self._unfinished, self._room = event.unfinished, event.room
        self._evaluating = event.evaluating

    def _request(self, facts: Looked) -> Ask:
        assert self.version is not None
        version = None if facts.at_hand is None else max(facts.at_hand, self.version)
        return Ask(self._unfinished, self._room, version, evaluating=self._evaluating)

    def _sees_newer(self, facts: Looked) -> bool:
        """Says whether there are newer weights, and notes when they were last asked for."""
        if facts.newest is None:
            return False
        self._next_look_secs = facts.now_secs + IN_FLIGHT_POLL_SECS
        return self.version is None or facts.newest > self.version


def suits(grant: LeaseGrant, version: int | None) -> bool:
    """Says whether a version is the one that a grant asks for, or newer if the grant allows it."""
    if version is None:
        return False
    return version == grant.version or (version > grant.version and not grant.exactly)


def _gone_text(wanted: int, own: int) -> str:
    return (
        f"Groups were lost that have to be generated again with version {wanted} of the weights,"
        f" which no process has any more: the explorer has version {own}."
    )
