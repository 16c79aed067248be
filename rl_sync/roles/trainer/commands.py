"""Commands of a trainer's life, and the failures that it hears of.

The commands that make a state end with its step; the others end with nothing, None.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class StartingPoint:
    """Relation of the state of a trainer that starts to the run so far.

    Attributes:
      start: step that the schedule counts from.
      step: step of the state.
      counted: last step that the master counts. Steps up to it are done again, from the log.
      logged: last step whose batch is logged.
      oldest_version: oldest version that explorers may still ask for.
      goes_on: whether a trainer before this one began the run, and died.
    """

    start: int
    step: int
    counted: int
    logged: int
    oldest_version: int
    goes_on: bool = False

    @classmethod
    def at(cls, step: int) -> StartingPoint:
        """Returns the point of a run that begins or resumes at a step."""
        return cls(start=step, step=step, counted=step, logged=step, oldest_version=step)


# Commands.


@dataclasses.dataclass(frozen=True)
class Initialize:
    """Makes the initial policy, with its SFT; ends with its step, 0."""


@dataclasses.dataclass(frozen=True)
class RestoreNewest:
    """Loads the newest snapshot that is not damaged, for a run that begins; ends with its step."""


@dataclasses.dataclass(frozen=True)
class Restore:
    """Loads a snapshot, for a run that goes on; ends with its step, or None if it is damaged."""

    step: int


@dataclasses.dataclass(frozen=True)
class AbandonRun:
    """Ends the trainer: no snapshot leads to step `counted`, which the master counts."""

    counted: int


@dataclasses.dataclass(frozen=True)
class AnnounceBeginning:
    """Tells the master that the run begins after a step."""

    step: int


@dataclasses.dataclass(frozen=True)
class AnnounceGoingOn:
    """Says that the run goes on after step `counted`, from a state."""

    counted: int
    step: int


@dataclasses.dataclass(frozen=True)
class OpenStreams:
    """Opens what batches come from, and what versions go to; `point` says where."""

    point: StartingPoint


@dataclasses.dataclass(frozen=True)
class TakeBatch:
    """Waits until the batch of a step is whole.

    A batch that is logged is read from the log.
    """

    step: int


@dataclasses.dataclass(frozen=True)
class LogBatch:
    """Begins to write the batch of a step to the log."""

    step: int


@dataclasses.dataclass(frozen=True)
class TrainStep:
    """Begins to train on the batch of a step, which replaces the state before it.

    Once the step is computed, and its batch is in the log, it is reported to the master, unless
    the master counts it. Reports keep the order of steps. At most two steps are under way.
    """

    step: int
    is_counted: bool


@dataclasses.dataclass(frozen=True)
class AwaitLog:
    """Waits until the batches so far are in the log, durably."""


@dataclasses.dataclass(frozen=True)
class AwaitReports:
    """Waits until all steps so far are computed and reported."""


@dataclasses.dataclass(frozen=True)
class PublishVersion:
    """Publishes the weights after a step.

    If the version was published before, its digest must be the same as then; in exact modes a
    difference ends the run.
    """

    version: int


@dataclasses.dataclass(frozen=True)
class ServeWeights:
    """Serves explorers that wait for weights, where the transfer needs it."""


@dataclasses.dataclass(frozen=True)
class SaveSnapshot:
    """Saves the state after a step, unless it is saved.

    Attributes:
      step: the step.
      waits: whether the snapshot must be whole before the next command. Otherwise it may be
        written while the run goes on.
    """

    step: int
    waits: bool


@dataclasses.dataclass(frozen=True)
class SaveInMemory:
    """Saves the state after a step in memory, unless the one before is still being written.

    It outlives the trainer's process, not its machine.
    """

    step: int


@dataclasses.dataclass(frozen=True)
class EvaluateStep:
    """Evaluates the policy after a step."""

    step: int


@dataclasses.dataclass(frozen=True)
class GiveGroupsBack:
    """Gives up groups that were taken from the buffer and not trained on, for a reason."""

    reason: str


@dataclasses.dataclass(frozen=True)
class BeginEnd:
    """Says that no further step follows, which others show."""


@dataclasses.dataclass(frozen=True)
class EndTraining:
    """Reports the digest of the weights after the last step, and leaves; the last command."""

    step: int


TrainerCommand = (
    Initialize
    | RestoreNewest
    | Restore
    | AbandonRun
    | AnnounceBeginning
    | AnnounceGoingOn
    | OpenStreams
    | TakeBatch
    | LogBatch
    | TrainStep
    | AwaitLog
    | AwaitReports
    | PublishVersion
    | ServeWeights
    | SaveSnapshot
    | SaveInMemory
    | EvaluateStep
    | GiveGroupsBack
    | BeginEnd
    | EndTraining
)


class StopAskedError(Exception):
    """The run is being stopped, for the reason that is its text; thrown in at a command."""


class OthersFailedError(Exception):
    """Another role has failed, or the connection to it; thrown in at a command."""
