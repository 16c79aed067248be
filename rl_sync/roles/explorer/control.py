"""The explorer's control: decides what an explorer does next, as a pure state machine.

`transition(state, event) -> (state, commands)`. The driver in `loop` executes the commands in their
order. The last one ends with an event, which the driver hands to the next transition; the others
end with nothing. The simulation of faults executes the same commands in virtual time.
"""

from __future__ import annotations

import dataclasses
import enum

from rl_sync.roles.master.events import Finish, GrantEvaluation, HoldBack, LeaseGrant
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

Answer = LeaseGrant | GrantEvaluation | HoldBack | Finish
Grant = LeaseGrant | GrantEvaluation


# Commands.


@dataclasses.dataclass(frozen=True)
class StartDeadline:
    """Starts the deadline of a wait for something from somebody."""

    what: str
    whom: str


@dataclasses.dataclass(frozen=True)
class CheckDeadline:
    """Gives up if the deadline has passed, or if the run is being stopped."""


@dataclasses.dataclass(frozen=True)
class RenewDeadline:
    """Starts the deadline again, because the awaited work has made progress."""


@dataclasses.dataclass(frozen=True)
class BeginWait:
    """The explorer begins to wait; `version` is the version that it waits for, if it is one."""

    reason: str
    version: int | None = None


@dataclasses.dataclass(frozen=True)
class EndWait:
    """The explorer has what it waited for."""


@dataclasses.dataclass(frozen=True)
class Pause:
    """Does nothing for a time."""

    secs: float


@dataclasses.dataclass(frozen=True)
class CheckDelivery:
    """Gives up if the delivery of earlier groups has failed."""


@dataclasses.dataclass(frozen=True)
class Look:
    """Looks at the clock and at the weights; ends with `Looked`.

    Attributes:
      newest_after_secs: time from which on the newest version is asked for; None for never.
    """

    newest_after_secs: float | None = None


@dataclasses.dataclass(frozen=True)
class Ask:
    """Asks the master for work; ends with `WorkAnswered`.

    Attributes:
      unfinished, room, version, poll_secs: see `rl_sync.cluster.master_calls.AskLease`.
    """

    unfinished: int = 0
    room: int | None = None
    version: int | None = None
    poll_secs: float = 0.0


FIRST_REQUEST = Ask()
"""Request of an explorer that has no weights yet."""


@dataclasses.dataclass(frozen=True)
class AwaitVersion:
    """Asks for the newest version, and waits a time for the given one; ends with `NewestKnown`."""

    version: int
    poll_secs: float = 0.0


@dataclasses.dataclass(frozen=True)
class Pull:
    """Receives weights; ends with `Pulled`, `PullLate` or `PullFailed`.

    Attributes:
      version, exactly: the version, and whether no newer one will do.
      step: explorer step that needs the weights; None while completions are in flight.
      since_secs: time when the first attempt began; None if this is the first.
    """

    version: int
    exactly: bool
    step: int | None
    since_secs: float | None = None


@dataclasses.dataclass(frozen=True)
class TellFailure:
    """Says that a version did not arrive, and is asked for again."""

    why: str


@dataclasses.dataclass(frozen=True)
class GiveUp:
    """Ends the explorer, because weights that it needs do not come.

    Attributes:
      why: the reason, as a sentence.
    """

    why: str


@dataclasses.dataclass(frozen=True)
class BeginRollout:
    """A rollout begins, with work of an explorer step."""

    step: int


@dataclasses.dataclass(frozen=True)
class RollOut:
    """Generates the next part of a rollout, which begins these leases; ends with `RolledOut`.

    Attributes:
      may_swap: whether the driver reports `SwapPossible` while the part is generated.
    """

    leases: tuple[Lease, ...]
    may_swap: bool


@dataclasses.dataclass(frozen=True)
class EndRollout:
    """The rollout is over; its groups may be delivered or not."""


@dataclasses.dataclass(frozen=True)
class Deliver:
    """Delivers the groups that the last part of a rollout has finished."""


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Completes the held-out problems, and hands them in; ends with `EvaluationEnded`."""


@dataclasses.dataclass(frozen=True)
class AwaitMeasured:
    """Waits until the evaluations that were handed in are measured."""


@dataclasses.dataclass(frozen=True)
class GoOn:
    """Goes on with the part of the rollout in which a swap was possible; ends with nothing."""


@dataclasses.dataclass(frozen=True)
class LeaveRun:
    """The explorer leaves the run; ends with nothing."""


ExplorerCommand = (
    StartDeadline
    | CheckDeadline
    | RenewDeadline
    | BeginWait
    | EndWait
    | Pause
    | CheckDelivery
    | Look
    | Ask
    | AwaitVersion
    | Pull
    | TellFailure
    | GiveUp
    | BeginRollout
    | RollOut
    | EndRollout
    | Deliver
    | Evaluate
    | AwaitMeasured
    | GoOn
    | LeaveRun
)


# Events.


@dataclasses.dataclass(frozen=True)
class Ready:
    """The explorer has compiled its programs."""


@dataclasses.dataclass(frozen=True)
class Looked:
    """Facts at hand.

    Attributes:
      now_secs: time of the look.
      at_hand: newest version that is here already; None if weights come on demand.
      newest: newest published version; None if it was not asked for.
    """

    now_secs: float
    at_hand: int | None = None
    newest: int | None = None


@dataclasses.dataclass(frozen=True)
class WorkAnswered:
    """The master has answered."""

    answer: Answer
    now_secs: float


@dataclasses.dataclass(frozen=True)
class NewestKnown:
    """The newest published version is known; -1 if there is none."""

    version: int


@dataclasses.dataclass(frozen=True)
class Pulled:
    """Weights of a version have arrived."""

    version: int


@dataclasses.dataclass(frozen=True)
class PullLate:
    """No weights have arrived in time; the attempts began at `since_secs`."""

    since_secs: float


@dataclasses.dataclass(frozen=True)
class PullFailed:
    """The trainer was lost while weights travelled; the attempts began at `since_secs`."""

    since_secs: float
    why: str


@dataclasses.dataclass(frozen=True)
class RolledOut:
    """A part of a rollout has ended.

    Attributes:
      whole: number of groups that it has finished.
      unfinished: number of groups that are in flight.
      room: number of groups that can begin in addition; None if the explorer does not stream.
    """

    whole: int
    unfinished: int
    room: int | None = None


@dataclasses.dataclass(frozen=True)
class EvaluationEnded:
    """The held-out problems are handed in; `unfinished` and `room` as in `RolledOut`."""

    unfinished: int
    room: int | None = None


@dataclasses.dataclass(frozen=True)
class SwapPossible:
    """A chunk of a rollout has ended, and newer weights could be used from here on."""


ExplorerEvent = (
    Ready
    | Looked
    | WorkAnswered
    | NewestKnown
    | Pulled
    | PullLate
    | PullFailed
    | RolledOut
    | EvaluationEnded
    | SwapPossible
)


class Stage(enum.Enum):
    """Part of the explorer's work that its last commands belong to."""

    ASKING = enum.auto()
    HELD_BACK = enum.auto()
    PULLING = enum.auto()
    ROLLING = enum.auto()
    SWAPPING = enum.auto()
    EVALUATING = enum.auto()


@dataclasses.dataclass(frozen=True)
class ExplorerControl:
    """The control's whole state.

    Attributes:
      groups: maximum number of groups in flight.
      in_parts, streams: see `Explorer`.
      swaps: whether weights may change while completions are in flight.
      is_elastic: whether the trainer may die, and is started again.
      version: version of the weights in use; None before the first.
      unfinished: number of groups in flight.
      room: number of groups that can begin in addition; None if the explorer does not stream.
      stage: current part of the work.
      request: last request for work.
      held: answer that the explorer is held back with.
      kept: answer that ended a streaming rollout, and is taken up next.
      grant: work that the explorer has now.
      is_waiting: whether it waits for a version.
      whole: number of groups that the rollout has finished.
      next_look_secs: time from which on the newest version may be asked for again.
      next_request_secs: time from which on leases may be asked for again.
      has_evaluated: whether it has handed in an evaluation.
    """

    groups: int
    in_parts: bool = False
    streams: bool = False
    swaps: bool = False
    is_elastic: bool = False
    version: int | None = None
    unfinished: int = 0
    room: int | None = None
    stage: Stage = Stage.ASKING
    request: Ask = FIRST_REQUEST
    held: HoldBack | None = None
    kept: Answer | None = None
    grant: Grant | None = None
    is_waiting: bool = False
    whole: int = 0
    next_look_secs: float = 0.0
    next_request_secs: float = 0.0
    has_evaluated: bool = False


Step = tuple[ExplorerControl, tuple[ExplorerCommand, ...]]


def transition(state: ExplorerControl, event: ExplorerEvent) -> Step:
    """Handles one event.

    Returns:
      The next state, and the commands, in order; the last one ends with the next event.
    """
    match state.stage, event:
        case _, Ready():
            return _seek(state)
        case Stage.ASKING, Looked():
            return _ask(state, event)
        case Stage.ROLLING, Looked():
            return _look_around(state, event)
        case Stage.SWAPPING, Looked():
            return _consider(state, event)
        case Stage.ASKING, WorkAnswered(HoldBack() as answer, _):
            return _hold(state, answer, (BeginWait(answer.reason),))
        case Stage.HELD_BACK, WorkAnswered(HoldBack() as answer, _):
            return _hold_on(state, answer)
        case Stage.HELD_BACK, WorkAnswered(answer, _):
            return _after((EndWait(),), _work_on(state, answer))
        case Stage.ASKING, WorkAnswered(answer, _):
            return _work_on(state, answer)
        case Stage.ROLLING, WorkAnswered():
            return _take_more(state, event)
        case _, NewestKnown(version):
            return _fetch(state, version)
        case Stage.SWAPPING, Pulled(version):
            return dataclasses.replace(state, stage=Stage.ROLLING, version=version), (GoOn(),)
        case Stage.SWAPPING, PullLate():  # It was withdrawn: the current weights are used further.
            return dataclasses.replace(state, stage=Stage.ROLLING), (GoOn(),)
        case _, Pulled(version):
            return _begin(dataclasses.replace(state, version=version))
        case _, PullLate(since_secs):
            return state, (CheckDeadline(), _pull(state, since_secs))
        case _, PullFailed(since_secs, why):
            if not state.is_elastic:
                return state, (GiveUp(why),)
            # A trainer that is started again offers the version again.
            wait = (TellFailure(why), CheckDeadline(), Pause(POLL_SECS))
            return state, (*wait, _pull(state, since_secs))
        case _, RolledOut():
            return _continue(state, event)
        case _, SwapPossible():
            return dataclasses.replace(state, stage=Stage.SWAPPING), (Look(state.next_look_secs),)
        case _, EvaluationEnded(unfinished, room):
            return _seek(
                dataclasses.replace(state, unfinished=unfinished, room=room, has_evaluated=True)
            )
    raise AssertionError(f"{event} cannot follow in {state}")


def suits(grant: Grant, version: int | None) -> bool:
    """Says whether a version is the one that a grant asks for, or newer if the grant allows it."""
    if version is None:
        return False
    return version == grant.version or (version > grant.version and not grant.exactly)


def _after(commands: tuple[ExplorerCommand, ...], step: Step) -> Step:
    """Puts commands before those of a step."""
    state, following = step
    return state, commands + following


def _seek(state: ExplorerControl) -> Step:
    """Takes up the answer that ended a streaming rollout, or asks for work."""
    kept, state = state.kept, dataclasses.replace(state, kept=None, stage=Stage.ASKING)
    if kept is not None and not isinstance(kept, HoldBack):
        return _work_on(state, kept)
    start = StartDeadline("prompts", "the master, which waits for the trainer")
    if state.version is not None:
        return state, (start, Look())
    state = dataclasses.replace(state, request=FIRST_REQUEST)
    return state, (start, CheckDelivery(), state.request)


def _ask(state: ExplorerControl, facts: Looked) -> Step:
    state = dataclasses.replace(state, request=_request(state, facts))
    return state, (CheckDelivery(), state.request)


def _request(state: ExplorerControl, facts: Looked) -> Ask:
    assert state.version is not None
    version = None if facts.at_hand is None else max(facts.at_hand, state.version)
    return Ask(state.unfinished, state.room, version)


def _hold(
    state: ExplorerControl, answer: HoldBack, commands: tuple[ExplorerCommand, ...] = ()
) -> Step:
    """Asks again, and waits at the master."""
    again = dataclasses.replace(state.request, poll_secs=POLL_SECS)
    state = dataclasses.replace(state, stage=Stage.HELD_BACK, held=answer)
    return state, (*commands, CheckDeadline(), CheckDelivery(), again)


def _hold_on(state: ExplorerControl, answer: HoldBack) -> Step:
    """Waits further; a long SFT must not end the wait, as long as it makes progress."""
    held = state.held
    assert held is not None
    commands: tuple[ExplorerCommand, ...] = ()
    if answer.trainer_step != held.trainer_step:
        commands = (RenewDeadline(),)
    if answer.reason != held.reason:
        commands += (EndWait(), BeginWait(answer.reason))
    return _hold(state, answer, commands)


def _work_on(state: ExplorerControl, answer: Answer) -> Step:
    """Takes up work, or leaves if there is no more."""
    if isinstance(answer, Finish):
        measured = (AwaitMeasured(),) if state.has_evaluated else ()
        return state, (*measured, LeaveRun())
    assert not isinstance(answer, HoldBack)
    state = dataclasses.replace(state, grant=answer)
    if suits(answer, state.version):
        return _begin(state)
    if not state.is_elastic and state.version is not None and answer.version < state.version:
        # Whoever is started anew gets all versions again, from a snapshot that is old enough.
        return state, (GiveUp(_gone_text(answer.version, state.version)),)
    state = dataclasses.replace(state, stage=Stage.PULLING)
    what = f"the weights of version {answer.version}"
    return state, (StartDeadline(what, TRAINER), AwaitVersion(answer.version))


def _gone_text(wanted: int, own: int) -> str:
    return (
        f"Groups were lost that have to be generated again with version {wanted} of the weights,"
        f" which no process has any more: the explorer has version {own}."
    )


def _fetch(state: ExplorerControl, newest: int) -> Step:
    """Pulls the version of the grant once it is available."""
    assert state.grant is not None
    wanted = state.grant.version
    if newest >= wanted:
        ended = (EndWait(),) if state.is_waiting else ()
        return dataclasses.replace(state, is_waiting=False), (*ended, _pull(state))
    poll = AwaitVersion(wanted, POLL_SECS)
    if state.is_waiting:
        return state, (CheckDeadline(), Pause(PAUSE_SECS), poll)
    wait = BeginWait("synchronization", wanted)
    return dataclasses.replace(state, is_waiting=True), (wait, poll)


def _pull(state: ExplorerControl, since_secs: float | None = None) -> Pull:
    grant = state.grant
    assert grant is not None
    return Pull(grant.version, grant.exactly, grant.step, since_secs)


def _begin(state: ExplorerControl) -> Step:
    """Begins the work of the grant, with the weights that it asks for."""
    grant = state.grant
    if isinstance(grant, GrantEvaluation):
        return dataclasses.replace(state, stage=Stage.EVALUATING), (Evaluate(),)
    assert grant is not None
    state = dataclasses.replace(state, stage=Stage.ROLLING, whole=0)
    return state, (BeginRollout(grant.step), _part(state, grant.leases))


def _part(state: ExplorerControl, leases: list[Lease] | tuple[Lease, ...] = ()) -> RollOut:
    """Returns the next part; a streaming explorer looks for weights between its parts instead."""
    return RollOut(tuple(leases), state.swaps and not state.streams)


def _continue(state: ExplorerControl, part: RolledOut) -> Step:
    """Goes on with the rollout, or ends it.

    A streaming rollout ends after as many groups as fill the slots, or when the master's answer is
    not leases for the current weights. A rollout in parts ends when nothing is in flight.
    """
    whole = state.whole + part.whole
    state = dataclasses.replace(state, unfinished=part.unfinished, room=part.room, whole=whole)
    delivery: tuple[ExplorerCommand, ...] = (Deliver(),) if part.whole else ()
    if state.streams and whole < state.groups:
        return state, (*delivery, CheckDelivery(), Look(_look_time(state)))
    if not state.streams and state.in_parts and part.unfinished:
        return state, (*delivery, CheckDelivery(), _part(state))
    return _after((EndRollout(), *delivery), _seek(state))


def _look_time(state: ExplorerControl) -> float | None:
    """Returns the time of the next look for newer weights between the parts of a rollout."""
    return state.next_look_secs if state.swaps else None


def _look_around(state: ExplorerControl, facts: Looked) -> Step:
    """Asks for work between two parts, if there is room or there are newer weights."""
    assert state.version is not None
    has_newer = facts.newest is not None and facts.newest > state.version
    may_ask = bool(state.room) and facts.now_secs >= state.next_request_secs
    state = _noted(state, facts)
    if state.unfinished and not has_newer and not may_ask:
        return state, (_part(state),)
    return state, (_request(state, facts),)


def _take_more(state: ExplorerControl, event: WorkAnswered) -> Step:
    """Begins more leases of the current weights; any other answer ends the rollout."""
    answer = event.answer
    if isinstance(answer, LeaseGrant) and not answer.leases:
        state = dataclasses.replace(state, next_request_secs=event.now_secs + NO_ROOM_SECS)
    if isinstance(answer, LeaseGrant) and suits(answer, state.version):
        return state, (_part(state, answer.leases),)
    return _after((EndRollout(),), _seek(dataclasses.replace(state, kept=answer)))


def _consider(state: ExplorerControl, facts: Looked) -> Step:
    """Takes newer weights while completions are in flight."""
    state, version = _noted(state, facts), state.version
    assert version is not None
    if facts.newest is None or facts.newest <= version:
        return dataclasses.replace(state, stage=Stage.ROLLING), (GoOn(),)
    return state, (Pull(version + 1, False, None),)


def _noted(state: ExplorerControl, facts: Looked) -> ExplorerControl:
    """Notes when the newest version was last asked for."""
    if facts.newest is None:
        return state
    return dataclasses.replace(state, next_look_secs=facts.now_secs + IN_FLIGHT_POLL_SECS)
