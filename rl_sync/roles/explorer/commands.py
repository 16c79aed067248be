"""Commands of an explorer's life, and the events that they end with.

A command without an event ends with nothing, None.
"""

from __future__ import annotations

import dataclasses

from rl_sync.messages.events import Finish, GrantEvaluation, HoldBack, LeaseGrant
from rl_sync.types import Lease

Answer = LeaseGrant | GrantEvaluation | HoldBack | Finish

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
      unfinished, room, version, poll_secs, evaluating: see
        `rl_sync.messages.master_calls.AskLease`.
    """

    unfinished: int = 0
    room: int | None = None
    version: int | None = None
    poll_secs: float = 0.0
    evaluating: int = 0


FIRST_REQUEST = Ask()
"""Request of an explorer that has no weights yet."""


@dataclasses.dataclass(frozen=True)
class AwaitVersion:
    """Asks for the newest version, and waits a time for the given one; ends with the newest one, an
    integer, which is -1 if there is none.
    """

    version: int
    poll_secs: float = 0.0


@dataclasses.dataclass(frozen=True)
class Pull:
    """Receives weights; ends with the version that arrived, an integer, or `NotPulled`.

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
    """Generates the next part of a rollout, which begins these leases.

    It ends with `RolledOut`, or with `ChunkEnded` if the part goes on after `GoOn`.

    Attributes:
      in_chunks: whether it ends with `ChunkEnded` after each chunk of tokens, where newer weights
        could be used.
    """

    leases: tuple[Lease, ...]
    in_chunks: bool


@dataclasses.dataclass(frozen=True)
class TellTokens:
    """Tells the master the new tokens of completions in flight, if enough are new."""


@dataclasses.dataclass(frozen=True)
class EndRollout:
    """The rollout is over; its groups may be delivered or not."""


@dataclasses.dataclass(frozen=True)
class Deliver:
    """Delivers the groups that the last part of a rollout has finished."""


@dataclasses.dataclass(frozen=True)
class BeginEvaluation:
    """Begins an evaluation beside the rollouts, or lets it wait for an earlier one.

    It ends with `EvaluationBegun`, also if the version is gone, which the master then records.

    Attributes:
      version: the only version that will do.
    """

    version: int


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Goes on with an evaluation for a chunk, while nothing can be rolled out.

    It ends with the number of evaluations that are not handed in yet, an integer.
    """


@dataclasses.dataclass(frozen=True)
class AwaitMeasured:
    """Waits until the evaluations that were handed in are measured."""


@dataclasses.dataclass(frozen=True)
class GoOn:
    """Goes on with the part of the rollout of which a chunk has ended; ends as `RollOut` does."""


@dataclasses.dataclass(frozen=True)
class LeaveRun:
    """The explorer leaves the run; the last command."""


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
    | BeginEvaluation
    | Evaluate
    | AwaitMeasured
    | GoOn
    | TellTokens
    | LeaveRun
)


# Events: how commands end.


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
class NotPulled:
    """No weights have arrived.

    Attributes:
      since_secs: time when the attempts began.
      why: the reason if the trainer was lost while they travelled; None if they are only late.
    """

    since_secs: float
    why: str | None = None


@dataclasses.dataclass(frozen=True)
class RolledOut:
    """A part of a rollout has ended.

    Attributes:
      whole: number of groups that it has finished.
      unfinished: number of groups that are in flight.
      room: number of groups that can begin in addition; None if the explorer does not stream.
      evaluating: number of evaluations that are not handed in yet.
    """

    whole: int
    unfinished: int
    room: int | None = None
    evaluating: int = 0


@dataclasses.dataclass(frozen=True)
class EvaluationBegun:
    """An evaluation has begun, or waits, or its version is gone.

    Attributes:
      evaluating: number of evaluations that are not handed in yet.
      version: version of the weights that rollouts now use; None if there are none yet.
    """

    evaluating: int
    version: int | None


@dataclasses.dataclass(frozen=True)
class ChunkEnded:
    """A chunk of a rollout has ended, and newer weights could be used from here on."""


ExplorerEvent = (
    Looked | WorkAnswered | NotPulled | RolledOut | EvaluationBegun | ChunkEnded | int | None
)
"""Ends of commands; an integer is a version, or the number of evaluations in progress."""
