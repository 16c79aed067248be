"""The calls that the master answers: a record each, and what they are answered with.

Those about judgements are in `judging_calls`, those about weights in `weight_calls`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from rl_sync.cluster.heartbeats import Silence
from rl_sync.cluster.rpc import Call
from rl_sync.cluster.run_result import RunResult, Summary
from rl_sync.cluster.scoring_calls import CompletionToScore, Judgements
from rl_sync.display.live import RoleStatus, RunStatus
from rl_sync.isolation.codec import record
from rl_sync.records.alarms import Alarm
from rl_sync.roles.master.events import (
    BatchTrained,
    ExplorerDied,
    Finish,
    GrantEvaluation,
    GroupsBuffered,
    GroupsRefused,
    HoldBack,
    Position,
    StopRequested,
    VersionPublished,
)
from rl_sync.types import Lease, Prompt, Seen, Use

for _class in (
    *(BatchTrained, ExplorerDied, GroupsBuffered, GroupsRefused),
    *(Finish, GrantEvaluation, HoldBack, Position, StopRequested, VersionPublished),
    *(Seen, Use),
    *(RoleStatus, RunStatus, Silence, Lease, Prompt),
    Alarm,
):
    record(_class)


# What becomes of groups.


@record
class LeaseGrant(NamedTuple):
    """The work of an explorer's next rollout; see `rl_sync.roles.master.events.GrantLeases`."""

    step: int
    version: int
    exactly: bool
    leases: list[Lease]


@dataclasses.dataclass(frozen=True)
class AskLease(Call[LeaseGrant | GrantEvaluation | HoldBack | Finish]):
    """Asks for work.

    Attributes:
      explorer: its number.
      unfinished, room: see `LeaseRequested`.
      poll_secs: the longest that it waits while it is held back.
    """

    explorer: int
    unfinished: int = 0
    poll_secs: float = 0.0
    room: int | None = None


@dataclasses.dataclass(frozen=True)
class Claim(Call[list[int]]):
    """The trainer has taken groups out of the buffer; asks for those whose lease was over."""

    lease_ids: list[int]


@dataclasses.dataclass(frozen=True)
class Happened(Call[None]):
    """Something has happened that the master accounts for."""

    event: GroupsBuffered | GroupsRefused | VersionPublished | ExplorerDied | StopRequested


# Where the run stands.


@dataclasses.dataclass(frozen=True)
class Resumed(Call[None]):
    """The run goes on from a snapshot; see `rl_sync.records.resumption.mark`."""

    step: int
    sft_step: int | None


@dataclasses.dataclass(frozen=True)
class TrainerReady(Call[None]):
    """The trainer is ready."""

    position: Position


@dataclasses.dataclass(frozen=True)
class Trained(Call[Judgements]):
    """The trainer has finished a step; answered with the judgements of groups that it records.

    Attributes:
      metrics: of the step; `num_tokens` are its own.
      spent: see `SpanRecorder.spent`.
      recorded: the lease ids of these groups.
    """

    event: BatchTrained
    metrics: dict[str, float]
    spent: dict[str, float]
    recorded: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class AskPosition(Call[Position]):
    """Asks where the run stands in the order of prompts."""


@dataclasses.dataclass(frozen=True)
class EnterPhase(Call[None]):
    """The run enters a phase.

    Attributes:
      message: a line for the display; empty for that of before.
    """

    phase: str
    message: str = ""


@dataclasses.dataclass(frozen=True)
class AskStatus(Call[RunStatus]):
    """Asks what the run is doing."""


# What comes of the run.


@dataclasses.dataclass(frozen=True)
class Report(Call[None]):
    """Adds to the run's result."""

    result: RunResult


@dataclasses.dataclass(frozen=True)
class HandInEvaluation(Call[None]):
    """Hands in the completions of an evaluation, which the master has judged and measures.

    A completion that was handed in before, of the same moment, problem and sample, counts once.

    Attributes:
      moment: names the evaluation, such as "after step 20".
      step: the trainer step of the weights.
      items: the completions, or some of them.
    """

    moment: str
    step: int
    items: list[CompletionToScore]


@dataclasses.dataclass(frozen=True)
class HandInMeasured(Call[None]):
    """Hands in an evaluation that needs no judging.

    Attributes:
      moment, step: see `HandInEvaluation`.
      values: its metrics.
    """

    moment: str
    step: int
    values: dict[str, float]


@dataclasses.dataclass(frozen=True)
class AwaitEvaluations(Call[None]):
    """Waits until all evaluations that were handed in are measured.

    It may take long; see `rl_sync.cluster.pending`.
    """


@dataclasses.dataclass(frozen=True)
class AskKeptSnapshots(Call[list[int]]):
    """Asks for the steps whose snapshots stay: the best, and those that may become it."""


@dataclasses.dataclass(frozen=True)
class WriteMetrics(Call[None]):
    """Writes metrics down; see `MetricsWriter.write`."""

    phase: str
    step: int
    values: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Fail(Call[None]):
    """Stops the run, which then has failed for this reason; the first one counts."""

    reason: str


@dataclasses.dataclass(frozen=True)
class CloseLedger(Call[Summary]):
    """Closes the ledger's account, once the explorers have left; the master ends after it."""


# Signs of life.


@dataclasses.dataclass(frozen=True)
class Heartbeat(Call[str | None]):
    """A sign of life of one process of a role; asks why the run is being stopped, if it is.

    Attributes:
      status: of the role.
      name: of the process; see `process_name`.
      process: its number on its machine.
      doing: what it does, in words.
      spent: see `SpanRecorder.spent`.
    """

    status: RoleStatus
    name: str
    process: int
    doing: str
    spent: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Leave(Call[None]):
    """A process gives no more signs of life."""

    name: str


@dataclasses.dataclass(frozen=True)
class AskSilences(Call[list[Silence]]):
    """Asks for the processes that have given no sign of life for so long."""

    at_least_secs: float
