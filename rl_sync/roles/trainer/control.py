"""The trainer's control: decides what a trainer does next, as a pure state machine.

`transition(state, event) -> (state, commands)`. The driver executes the commands in their order.
The last one ends with an event, which the driver hands to the next transition.

A trainer is a snapshot and a log of batches. It loads a snapshot, of step r, and trains the logged
steps r + 1 to s again without asking anybody. Then it takes step s + 1. A step's batch is in the
log before anybody learns of the step, so a step that was reported is never undone.

Steps overlap: while one is computed, its batch is written to the log, and the step before it is
reported. The commands that wait for these (`AwaitLog`, `AwaitReports`) say what has to be over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rl_sync.roles.trainer.origins import leading_steps, oldest_version
from rl_sync.schedule import SyncSchedule

# Commands.


@dataclasses.dataclass(frozen=True)
class Initialize:
    """Makes the initial policy, with its SFT; ends with `Restored`."""


@dataclasses.dataclass(frozen=True)
class RestoreNewest:
    """Loads the newest snapshot that is not damaged, for a run that begins.

    It ends with `Restored`.
    """


@dataclasses.dataclass(frozen=True)
class Restore:
    """Loads a snapshot, for a run that goes on; ends with `Restored` or `Damaged`."""

    step: int


@dataclasses.dataclass(frozen=True)
class AbandonRun:
    """Ends the trainer: no snapshot leads to step `counted`, which the master counts."""

    counted: int


@dataclasses.dataclass(frozen=True)
class AnnounceBeginning:
    """Tells the master that the run begins after a step; ends with `Announced`."""

    step: int


@dataclasses.dataclass(frozen=True)
class AnnounceGoingOn:
    """Says that the run goes on after step `counted`, from a state; ends with `Announced`."""

    counted: int
    step: int


@dataclasses.dataclass(frozen=True)
class OpenStreams:
    """Opens what batches come from, and what versions go to; `point` says where."""

    point: StartingPoint


@dataclasses.dataclass(frozen=True)
class TakeBatch:
    """Waits for the batch of a step; ends with `BatchTaken`.

    A batch that is logged is read from the log.
    """

    step: int


@dataclasses.dataclass(frozen=True)
class LogBatch:
    """Begins to write the batch of a step to the log."""

    step: int


@dataclasses.dataclass(frozen=True)
class TrainStep:
    """Begins to train on the batch of a step; ends with `StepBegun`.

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
    """Reports the digest of the weights after the last step, and leaves; ends with nothing."""

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


# Events.


@dataclasses.dataclass(frozen=True)
class KnownRun:
    """A run as its master knows it.

    Attributes:
      start: step that the schedule counts from.
      counted: last step that was reported.
      evaluated: steps whose policies have been evaluated.
    """

    start: int
    counted: int
    evaluated: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class Begun:
    """The trainer begins or is started again, and has looked at what an earlier one left behind.

    Attributes:
      known: the run so far; None if no trainer has begun it.
      snapshots: steps of its snapshots, in order; in a run that goes on, also of those in memory.
      reaches: for 0 and each of these steps, the last step that the log leads to. It matters only
        in a run that was begun.
    """

    known: KnownRun | None = None
    snapshots: tuple[int, ...] = ()
    reaches: Mapping[int, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Restored:
    """The state after a step is loaded, or made."""

    step: int


@dataclasses.dataclass(frozen=True)
class Damaged:
    """The snapshot cannot be read."""


@dataclasses.dataclass(frozen=True)
class Announced:
    """The others know where the trainer starts."""


@dataclasses.dataclass(frozen=True)
class BatchTaken:
    """The batch of the next step is whole."""


@dataclasses.dataclass(frozen=True)
class StepBegun:
    """The next step is under way; the state before it is gone."""


@dataclasses.dataclass(frozen=True)
class StopAsked:
    """The run is being stopped for a reason, which a command met; it is not executed."""

    reason: str


@dataclasses.dataclass(frozen=True)
class OthersFailed:
    """A command met the failure of another role, or of the connection to it."""


TrainerEvent = (
    Begun | Restored | Damaged | Announced | BatchTaken | StepBegun | StopAsked | OthersFailed
)


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


@dataclasses.dataclass(frozen=True)
class TrainerPlan:
    """Settings that the trainer's decisions depend on.

    Attributes:
      schedule: sync schedule; where it counts from is known once the trainer begins.
      steps: number of trainer steps of the run.
      save_every_steps: trainer steps between two snapshots; 0 for one at the end only.
      memory_every_steps: trainer steps between two snapshots in memory; 0 for none.
      evaluate_every_steps: trainer steps between two evaluations by the trainer; 0 for those of the
        first and the last policy only.
      saves_evaluated: whether a snapshot is saved before each evaluation, so that the best is kept.
    """

    schedule: SyncSchedule
    steps: int
    save_every_steps: int = 0
    memory_every_steps: int = 0
    evaluate_every_steps: int = 0
    saves_evaluated: bool = False


@dataclasses.dataclass(frozen=True)
class TrainerControl:
    """The control's whole state.

    Attributes:
      plan: settings.
      known: the run so far when the trainer was started; None if it begins.
      snapshots, reaches: see `Begun`.
      candidates: steps whose states may be loaded, and were not tried yet, the best first.
      point: where the trainer starts; None until a state is restored.
      step: step of the state.
      is_announced: whether the others know where the trainer starts.
      is_ending: whether the commands that end the training were given.
    """

    plan: TrainerPlan
    known: KnownRun | None = None
    snapshots: tuple[int, ...] = ()
    reaches: Mapping[int, int] = dataclasses.field(default_factory=dict)
    candidates: tuple[int, ...] = ()
    point: StartingPoint | None = None
    step: int = 0
    is_announced: bool = False
    is_ending: bool = False


TrainerOutcome = tuple[TrainerControl, tuple[TrainerCommand, ...]]


def transition(state: TrainerControl, event: TrainerEvent) -> TrainerOutcome:
    """Handles one event.

    Returns:
      The next state, and the commands, in order; the last one ends with the next event. There may
      be none if the run is stopped, or others fail, before the trainer has begun.
    """
    match event:
        case Begun(known, snapshots, reaches):
            return _begin(
                dataclasses.replace(state, known=known, snapshots=snapshots, reaches=reaches)
            )
        case Damaged():
            return _restore_next(state)
        case Restored(step):
            return _start(state, step)
        case Announced():
            return _open(dataclasses.replace(state, is_announced=True))
        case BatchTaken():
            return state, _train(state)
        case StepBegun():
            return _after_step(dataclasses.replace(state, step=state.step + 1))
        case StopAsked(reason):
            # SFT has saved its state.
            return _end(state, GiveGroupsBack(reason)) if state.is_announced else (state, ())
        case OthersFailed():
            return _end(state) if state.is_announced else (state, _rescue(state))


def _begin(state: TrainerControl) -> TrainerOutcome:
    known, schedule = state.known, state.plan.schedule
    if known is None:
        return state, (RestoreNewest() if state.snapshots else Initialize(),)
    schedule = dataclasses.replace(schedule, start=known.start)
    candidates = leading_steps(state.reaches, schedule, known.counted, state.plan.steps)
    return _restore_next(dataclasses.replace(state, candidates=tuple(candidates)))


def _restore_next(state: TrainerControl) -> TrainerOutcome:
    """Loads the next candidate."""
    assert state.known is not None
    if not state.candidates:
        return state, (AbandonRun(state.known.counted),)
    first, *rest = state.candidates
    is_saved = first in state.snapshots
    return dataclasses.replace(state, candidates=tuple(rest)), (
        Restore(first) if is_saved else Initialize(),
    )


def _start(state: TrainerControl, step: int) -> TrainerOutcome:
    """Says where the trainer begins or goes on."""
    known, schedule = state.known, state.plan.schedule
    commands: list[TrainerCommand] = []
    if known is None:
        point = StartingPoint.at(step)
        if not state.snapshots:
            commands.append(EvaluateStep(0))
        commands.append(AnnounceBeginning(step))
    else:
        schedule = dataclasses.replace(schedule, start=known.start)
        point = StartingPoint(
            start=known.start,
            step=step,
            counted=known.counted,
            logged=state.reaches[step],
            oldest_version=oldest_version(schedule, known.counted, state.plan.steps),
            goes_on=True,
        )
        if step == 0 and 0 not in known.evaluated:
            commands.append(EvaluateStep(0))
        commands.append(AnnounceGoingOn(known.counted, step))
    schedule = dataclasses.replace(schedule, start=point.start)
    plan = dataclasses.replace(state.plan, schedule=schedule)
    return dataclasses.replace(state, plan=plan, point=point, step=step), tuple(commands)


def _open(state: TrainerControl) -> TrainerOutcome:
    """Begins to train, or to train again."""
    assert state.point is not None
    commands: list[TrainerCommand] = [OpenStreams(state.point)]
    if _is_published(state):
        commands.append(PublishVersion(state.step))
    return _next(state, commands)


def _rescue(state: TrainerControl) -> tuple[TrainerCommand, ...]:
    """Saves an initial policy whose evaluation fails, so that its SFT is not lost."""
    is_new = state.point is not None and not state.snapshots
    return (SaveSnapshot(0, waits=True),) if is_new and state.step == 0 else ()


def _train(state: TrainerControl) -> tuple[TrainerCommand, ...]:
    """Trains on the batch that was taken."""
    assert state.point is not None
    step = state.step + 1
    training = TrainStep(step, is_counted=step <= state.point.counted)
    return (training,) if step <= state.point.logged else (LogBatch(step), training)


def _after_step(state: TrainerControl) -> TrainerOutcome:
    """Publishes, saves and evaluates what is due, and goes on."""
    assert state.point is not None
    plan, step = state.plan, state.step
    commands: list[TrainerCommand] = []
    if _is_published(state):
        # Before anybody sees what the batch has made.
        commands += [AwaitLog(), PublishVersion(step)]
    commands.append(ServeWeights())
    if state.point.counted <= step < plan.steps:
        evaluated = frozenset() if state.known is None else state.known.evaluated
        evaluates = _is_due(step, plan.evaluate_every_steps) and step not in evaluated
        saves = _is_due(step, plan.save_every_steps) or (evaluates and plan.saves_evaluated)
        if saves or evaluates:
            commands.append(AwaitReports())
        if saves:
            commands.append(SaveSnapshot(step, waits=False))
        elif _is_due(step, plan.memory_every_steps):
            commands.append(SaveInMemory(step))
        if evaluates:
            commands.append(EvaluateStep(step))
    return _next(state, commands)


def _next(state: TrainerControl, before: Sequence[TrainerCommand]) -> TrainerOutcome:
    """Goes on to the next step, or ends after the last one.

    Args:
      before: what is left to do before.
    """
    assert state.point is not None
    if state.step < state.plan.steps:
        following = state.step + 1
        if state.point.counted < following - 1 == state.point.logged:
            # The master must count what the log has, before it is asked which groups are left.
            before = (*before, AwaitReports())
        return state, (*before, TakeBatch(following))
    state, commands = _end(state, GiveGroupsBack("the run ended"))
    return state, (*before, *commands)


def _end(state: TrainerControl, *first: TrainerCommand) -> TrainerOutcome:
    """Saves the state, and evaluates it after the last step."""
    commands = [AwaitReports(), *first, BeginEnd(), SaveSnapshot(state.step, waits=True)]
    if state.step == state.plan.steps:
        commands.append(EvaluateStep(state.step))
    return dataclasses.replace(state, is_ending=True), (*commands, EndTraining(state.step))


def _is_published(state: TrainerControl) -> bool:
    """Says whether the weights of the state are published, and explorers will use them."""
    assert state.point is not None
    schedule, step, is_exact = state.plan.schedule, state.step, state.plan.schedule.pull == "exact"
    if step < state.point.oldest_version:
        return False
    if is_exact and state.point.counted >= state.plan.steps:
        return False  # All groups are trained: explorers leave, and would not come for it.
    first_user = schedule.first_user(step) if is_exact else step + 1
    return schedule.publishes_after(step) and first_user <= state.plan.steps


def _is_due(step: int, every_steps: int) -> bool:
    """Says whether a step is a multiple of `every_steps`; 0 for never."""
    return every_steps > 0 and step % every_steps == 0
