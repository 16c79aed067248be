"""Calls that the master answers: one record for each, with the type of its result.

Calls about scores are in `scoring_calls`, calls about weights in `weight_calls`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from rl_sync.isolation.codec import record
from rl_sync.messages.call import Call
from rl_sync.messages.events import (
    BatchTrained,
    ExplorerDied,
    Finish,
    GrantBatch,
    GrantEvaluation,
    GroupsBuffered,
    GroupsRefused,
    HoldBack,
    LeaseGrant,
    Position,
    SnapshotSaved,
    StopRequested,
    VersionPublished,
)
from rl_sync.messages.run_result import RunResult, Summary
from rl_sync.messages.run_status import RoleStatus, RunStatus, Silence
from rl_sync.messages.scoring_calls import CompletionToScore, Judgements
from rl_sync.types import CompletionProgress, Lease, Prompt, PromptPast, Use

for _class in (
    *(BatchTrained, ExplorerDied, GroupsBuffered, GroupsRefused),
    *(Finish, GrantBatch, GrantEvaluation, HoldBack, LeaseGrant, Position, SnapshotSaved),
    *(StopRequested, VersionPublished),
    *(Lease, Prompt, PromptPast, Use),
):
    record(_class)


# Calls about groups.


@dataclasses.dataclass(frozen=True)
class AskLease(Call[LeaseGrant | GrantEvaluation | HoldBack | Finish]):
    """Asks for work.

    Attributes:
      explorer: number of the explorer.
      unfinished, room, version, request, evaluating: see `LeaseRequested`.
      poll_secs: maximum wait while the explorer is held back.
    """

    explorer: int
    unfinished: int = 0
    poll_secs: float = 0.0
    room: int | None = None
    version: int | None = None
    request: int | None = None
    evaluating: int = 0


@record
class ToldProgress(NamedTuple):
    """Tokens of a completion or an episode in flight that the master does not have yet.

    Attributes:
      lease_id: lease of its group.
      row: its row in the group; a greedy one is the last.
      start: number of tokens before these.
      progress: these tokens, with the positions of masks and replies in the whole.
    """

    lease_id: int
    row: int
    start: int
    progress: CompletionProgress


@dataclasses.dataclass(frozen=True)
class TellProgress(Call[list[int]]):
    """Reports tokens of unfinished groups, which go on from them if their explorer dies.

    The result lists the lease ids of groups that are to be told from their first tokens.
    """

    told: list[ToldProgress]


@dataclasses.dataclass(frozen=True)
class Claim(Call[list[int]]):
    """Reports that the trainer took groups from the buffer.

    The result lists the lease ids whose leases have ended.
    """

    lease_ids: list[int]


@record
class Buffered(NamedTuple):
    """The master's knowledge of the buffer.

    Attributes:
      step: last step that was counted.
      lease_ids: leases whose groups explorers have inserted, and no step has used up.
    """

    step: int
    lease_ids: list[int]


@dataclasses.dataclass(frozen=True)
class AskBuffered(Call[Buffered]):
    """Asks for the leases whose groups must be in the buffer, or with the trainer."""


@dataclasses.dataclass(frozen=True)
class AskBatch(Call[GrantBatch]):
    """Asks which of the groups that the trainer took from the buffer it trains on in a step.

    For runs whose groups have deadlines; see `rl_sync.roles.master.group_deadlines`.

    Attributes:
      step, at_hand: see `BatchRequested`.
    """

    step: int
    at_hand: list[int]


@dataclasses.dataclass(frozen=True)
class Happened(Call[None]):
    """Reports an event that the master has to count."""

    event: (
        GroupsBuffered
        | GroupsRefused
        | VersionPublished
        | ExplorerDied
        | SnapshotSaved
        | StopRequested
    )


# Calls about the state of the run.


@dataclasses.dataclass(frozen=True)
class Resumed(Call[None]):
    """Reports that the run resumes from a snapshot; see `rl_sync.records.resumption.mark`."""

    step: int
    sft_step: int | None


@record
class Progress(NamedTuple):
    """Progress of a run, as its master knows it.

    Attributes:
      start: trainer step that the schedule counts from; see `SyncSchedule`.
      step: last trainer step that was reported.
      evaluated: names of the moments whose evaluations have been made.
      is_new_attempt: whether all processes of the run have been started again.
      drops_buffered: whether groups that were in the buffer are generated again.
    """

    start: int
    step: int
    evaluated: list[str]
    is_new_attempt: bool = False
    drops_buffered: bool = False


@dataclasses.dataclass(frozen=True)
class AskProgress(Call[Progress | None]):
    """Asks how far the run has come; None if no trainer has been ready yet."""


@dataclasses.dataclass(frozen=True)
class TrainerDied(Call[None]):
    """Reports that the trainer died, and is started again.

    Attributes:
      reason: line for the display.
    """

    reason: str


@dataclasses.dataclass(frozen=True)
class TrainerReady(Call[None]):
    """Reports that the trainer is ready."""

    position: Position


@dataclasses.dataclass(frozen=True)
class Trained(Call[Judgements]):
    """Reports a finished trainer step; asks for the scores of the groups that the trainer records.

    Attributes:
      metrics: metrics of the step, with its own `num_tokens`.
      spent: see `SpanRecorder.spent`.
      recorded: lease ids of these groups.
    """

    event: BatchTrained
    metrics: dict[str, float]
    spent: dict[str, float]
    recorded: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class AskPosition(Call[Position]):
    """Asks for the run's position in the order of prompts."""


@dataclasses.dataclass(frozen=True)
class EnterPhase(Call[None]):
    """Reports that the run enters a phase.

    Attributes:
      message: line for the display; empty to keep the previous one.
    """

    phase: str
    message: str = ""


@dataclasses.dataclass(frozen=True)
class AskStatus(Call[RunStatus]):
    """Asks what the run is doing."""


# Calls about results of the run.


@dataclasses.dataclass(frozen=True)
class Report(Call[None]):
    """Adds to the run's result."""

    result: RunResult


def moment_of(step: int) -> str:
    """Returns the name of the evaluation after a trainer step, before the last one."""
    return f"after step {step}"


@dataclasses.dataclass(frozen=True)
class HandInEvaluation(Call[None]):
    """Submits completions of an evaluation, which the master scores and measures.

    A completion that was submitted before, with the same moment, problem and sample, counts once.

    Attributes:
      moment: name of the evaluation, such as "after step 20".
      step: trainer step of the weights.
      items: all or some of the completions.
      lost_secs: time in which the rollouts of an explorer stood still for them; None if the trainer
        has generated them.
    """

    moment: str
    step: int
    items: list[CompletionToScore]
    lost_secs: float | None = None


@dataclasses.dataclass(frozen=True)
class HandInMeasured(Call[None]):
    """Submits the metrics of an evaluation that needs no scoring.

    Attributes:
      moment, step: see `HandInEvaluation`.
      values: metrics of the evaluation.
    """

    moment: str
    step: int
    values: dict[str, float]


@dataclasses.dataclass(frozen=True)
class AwaitEvaluations(Call[None]):
    """Waits until all submitted evaluations are measured.

    It may take long; see `rl_sync.cluster.pending`.
    """


@dataclasses.dataclass(frozen=True)
class AskKeptSnapshots(Call[list[int]]):
    """Asks for the steps whose snapshots must be kept: the best, and any that may become it."""


@dataclasses.dataclass(frozen=True)
class WriteMetrics(Call[None]):
    """Writes metrics; see `MetricsWriter.write`."""

    phase: str
    step: int
    values: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Fail(Call[None]):
    """Stops the run as failed for this reason; the first reason counts."""

    reason: str


@dataclasses.dataclass(frozen=True)
class CloseLedger(Call[Summary]):
    """Closes the ledger once the explorers have left, and returns its summary; the master then
    ends.
    """


# Heartbeats.


@dataclasses.dataclass(frozen=True)
class Heartbeat(Call[str | None]):
    """Heartbeat of one process of a role; its result is the reason if the run is being stopped.

    Attributes:
      status: status of the role.
      name: name of the process; see `process_name`.
      process: its process id.
      doing: its activity, in words.
      spent: see `SpanRecorder.spent`.
    """

    status: RoleStatus
    name: str
    process: int
    doing: str
    spent: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Leave(Call[None]):
    """Reports that a process will send no more heartbeats."""

    name: str


@dataclasses.dataclass(frozen=True)
class AskSilences(Call[list[Silence]]):
    """Asks for the processes that have sent no heartbeat for a given time."""

    at_least_secs: float
