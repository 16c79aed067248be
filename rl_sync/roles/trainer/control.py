"""The trainer's control: decides what a trainer does next, as a pure state machine.

`transition(state, event) -> (state, commands)`. The driver executes the commands in their order.
The last one ends with an event, which the driver hands to the next transition.

A trainer is a snapshot and a log of batches. It loads its newest snapshot, of step r, and trains
the logged steps r + 1 to s again without asking anybody. Then it takes step s + 1. A step's batch
is in the log before anybody learns of the step, so a step that was reported is never undone.
"""

from __future__ import annotations

import dataclasses

from rl_sync.schedule import SyncSchedule

# Commands.


@dataclasses.dataclass(frozen=True)
class Restore:
    """Loads a snapshot, or the initial policy for step 0; ends with `Restored`."""

    step: int


@dataclasses.dataclass(frozen=True)
class Resume:
    """Tells the master which step the trainer goes on after; ends with `PositionKnown`."""

    step: int


@dataclasses.dataclass(frozen=True)
class Replay:
    """Trains a logged step again; ends with `StepTrained`."""

    step: int


@dataclasses.dataclass(frozen=True)
class TakeBatch:
    """Waits for the batch of a step; ends with `BatchTaken`."""

    step: int


@dataclasses.dataclass(frozen=True)
class LogBatch:
    """Writes the batch of a step to the log, durably; ends with `BatchLogged`."""

    step: int


@dataclasses.dataclass(frozen=True)
class TrainStep:
    """Trains on the batch of a step; ends with `StepTrained`."""

    step: int


@dataclasses.dataclass(frozen=True)
class ReportStep:
    """Reports a step to the master as trained; ends with `StepReported`."""

    step: int


@dataclasses.dataclass(frozen=True)
class PublishVersion:
    """Publishes the weights after a step; ends with `VersionAnnounced`.

    While steps are trained again, these may be weights that the snapshot has. If the version was
    published before, its digest must be the same as then; a difference stops the run.
    """

    version: int


@dataclasses.dataclass(frozen=True)
class SaveSnapshot:
    """Saves the state after a step, durably; ends with `SnapshotKept`.

    Attributes:
      step: the step.
      versions: published versions that explorers may still ask for, which the snapshot has too.
    """

    step: int
    versions: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class DropLog:
    """Deletes logged batches that no kept snapshot needs: those up to a step."""

    up_to_step: int


@dataclasses.dataclass(frozen=True)
class EvaluateStep:
    """Evaluates the policy after a step; ends with `EvaluationHandedIn`."""

    step: int


@dataclasses.dataclass(frozen=True)
class EndTraining:
    """Reports the digest, and leaves; ends with nothing. `step` is the last finished step."""

    step: int


TrainerCommand = (
    Restore
    | Resume
    | Replay
    | TakeBatch
    | LogBatch
    | TrainStep
    | ReportStep
    | PublishVersion
    | SaveSnapshot
    | DropLog
    | EvaluateStep
    | EndTraining
)


# Events.


@dataclasses.dataclass(frozen=True)
class Begun:
    """The trainer begins or is started again, and has looked at what it left behind.

    Attributes:
      snapshots: steps of its whole snapshots, in order; none for a new run.
      logged: last step of the log that follows the newest snapshot without a gap; the snapshot's
        step if there is none.
    """

    snapshots: tuple[int, ...] = ()
    logged: int = 0


@dataclasses.dataclass(frozen=True)
class Restored:
    """The state of a step is loaded; `versions` are the published versions that were saved too."""

    versions: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class PositionKnown:
    """The master knows where the trainer goes on.

    Attributes:
      reported: last step that was reported to the master before.
    """

    reported: int = 0


@dataclasses.dataclass(frozen=True)
class BatchTaken:
    """The batch of the next step is whole."""


@dataclasses.dataclass(frozen=True)
class BatchLogged:
    """The batch of the next step is in the log."""


@dataclasses.dataclass(frozen=True)
class StepTrained:
    """The next step is computed, for the first time or again."""


@dataclasses.dataclass(frozen=True)
class StepReported:
    """The master has counted the step."""


@dataclasses.dataclass(frozen=True)
class VersionAnnounced:
    """The version is published, and its digest is known to the master."""


@dataclasses.dataclass(frozen=True)
class SnapshotKept:
    """The snapshot of the last step is whole and durable."""


@dataclasses.dataclass(frozen=True)
class EvaluationHandedIn:
    """The evaluation of the last step is handed in."""


@dataclasses.dataclass(frozen=True)
class StopAsked:
    """The run is being stopped, or another role failed; no command is under way."""


TrainerEvent = (
    Begun
    | Restored
    | PositionKnown
    | BatchTaken
    | BatchLogged
    | StepTrained
    | StepReported
    | VersionAnnounced
    | SnapshotKept
    | EvaluationHandedIn
    | StopAsked
)


@dataclasses.dataclass(frozen=True)
class TrainerPlan:
    """Settings that the trainer's decisions depend on.

    Attributes:
      schedule: sync schedule.
      steps: number of trainer steps of the run.
      save_every_steps: trainer steps between two snapshots; 0 for one at the end only.
      keep: number of newest snapshots that are kept.
      evaluate_every_steps: trainer steps between two evaluations; 0 for those of the first and the
        last policy only.
      saves_evaluated: whether a snapshot is saved before each evaluation, so that the best is kept.
    """

    schedule: SyncSchedule
    steps: int
    save_every_steps: int = 0
    keep: int = 1
    evaluate_every_steps: int = 0
    saves_evaluated: bool = False

    def publishes(self, step: int) -> bool:
        """Says whether the weights after a step are published, and explorers will use them."""
        schedule = self.schedule
        first_user = schedule.first_user(step) if schedule.pull == "exact" else step + 1
        return schedule.publishes_after(step) and first_user <= self.steps

    def saves(self, step: int) -> bool:
        """Says whether a snapshot is due after a step."""
        due = _is_due(step, self.save_every_steps)
        return due or step == self.steps or (self.saves_evaluated and self.evaluates(step))

    def evaluates(self, step: int) -> bool:
        """Says whether the policy after a step is evaluated."""
        return step in (0, self.steps) or _is_due(step, self.evaluate_every_steps)

    def in_use(self, step: int) -> tuple[int, ...]:
        """Returns the versions up to a step that groups of later steps may be generated with."""
        schedule = self.schedule
        if schedule.pull == "latest":
            found = {step - (step - schedule.start) % schedule.interval}
        else:
            found = {schedule.exact_version(e) for e in range(step + 1, self.steps + 1)}
        return tuple(sorted(version for version in found if version <= step))


@dataclasses.dataclass(frozen=True)
class TrainerControl:
    """The control's whole state.

    Attributes:
      plan: settings.
      step: last step that is computed.
      logged: last step whose batch is in the log.
      reported: last step that the master has counted.
      snapshots: steps of the snapshots that are kept.
      to_do: what is left to do after the last step, before the next one.
      is_new: whether the run has just begun.
      is_stopping: whether the run is being stopped.
    """

    plan: TrainerPlan
    step: int = 0
    logged: int = 0
    reported: int = 0
    snapshots: tuple[int, ...] = ()
    to_do: tuple[TrainerCommand, ...] = ()
    is_new: bool = False
    is_stopping: bool = False


TrainerOutcome = tuple[TrainerControl, tuple[TrainerCommand, ...]]


def transition(state: TrainerControl, event: TrainerEvent) -> TrainerOutcome:
    """Handles one event.

    Returns:
      The next state, and the commands, in order; the last one ends with the next event.
    """
    match event:
        case Begun(snapshots, logged):
            start = max(snapshots, default=0)
            assert logged >= start, f"the log ends with step {logged}, before snapshot {start}"
            return dataclasses.replace(
                state, step=start, logged=logged, snapshots=snapshots, is_new=not snapshots
            ), (Restore(start),)
        case Restored(versions):
            return dataclasses.replace(state, to_do=_first(state, versions)), (
                Resume(state.logged),
            )
        case PositionKnown(reported):
            return _next(dataclasses.replace(state, reported=reported))
        case BatchTaken():
            return state, (LogBatch(state.step + 1),)
        case BatchLogged():
            logged = state.step + 1
            return dataclasses.replace(state, logged=logged), (TrainStep(logged),)
        case StepTrained():
            state = dataclasses.replace(state, step=state.step + 1)
            return _next(dataclasses.replace(state, to_do=_following(state)))
        case StepReported():
            return _next(dataclasses.replace(state, reported=state.step))
        case SnapshotKept():
            return _saved(state)
        case VersionAnnounced() | EvaluationHandedIn():
            return _next(state)
        case StopAsked():
            return _stop(state)


def _first(state: TrainerControl, versions: tuple[int, ...]) -> tuple[TrainerCommand, ...]:
    """Returns what is to do before the first step that is trained or trained again."""
    if state.is_new:
        return EvaluateStep(0), PublishVersion(0)
    return tuple(PublishVersion(version) for version in versions)


def _following(state: TrainerControl) -> tuple[TrainerCommand, ...]:
    """Returns what is to do after a step.

    A step that is trained again is published again, because its weights may not have reached
    anybody. It is reported only if the master has not counted it.
    """
    plan, step = state.plan, state.step
    to_do: list[TrainerCommand] = []
    if step > state.reported:
        to_do.append(ReportStep(step))
    if plan.publishes(step):
        to_do.append(PublishVersion(step))
    if plan.saves(step) and step not in state.snapshots:
        to_do.append(SaveSnapshot(step, plan.in_use(step)))
    if plan.evaluates(step):
        to_do.append(EvaluateStep(step))
    return tuple(to_do)


def _next(state: TrainerControl) -> TrainerOutcome:
    """Does what is left after the last step, and then goes on to the next one."""
    if state.to_do:
        command, *rest = state.to_do
        return dataclasses.replace(state, to_do=tuple(rest)), (command,)
    if state.step == state.plan.steps or state.is_stopping:
        return state, (EndTraining(state.step),)
    following = state.step + 1
    return state, (Replay(following) if following <= state.logged else TakeBatch(following),)


def _saved(state: TrainerControl) -> TrainerOutcome:
    """Keeps the newest snapshots, and the logged batches after the oldest of them."""
    kept = tuple(sorted({*state.snapshots, state.step})[-state.plan.keep :])
    state = dataclasses.replace(state, snapshots=kept)
    state, commands = _next(state)
    return state, (DropLog(kept[0]), *commands)


def _stop(state: TrainerControl) -> TrainerOutcome:
    """Ends the run early: the last computed step is reported and saved, and nothing follows."""
    rest = tuple(one for one in state.to_do if isinstance(one, ReportStep | SaveSnapshot))
    if not any(isinstance(one, SaveSnapshot) for one in rest) and state.step not in state.snapshots:
        rest += (SaveSnapshot(state.step, state.plan.in_use(state.step)),)
    return _next(dataclasses.replace(state, to_do=rest, is_stopping=True))


def _is_due(step: int, every_steps: int) -> bool:
    """Says whether a step is a multiple of `every_steps`; 0 for never."""
    return every_steps > 0 and step % every_steps == 0
