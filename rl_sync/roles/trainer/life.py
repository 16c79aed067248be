"""The trainer's life: decides what a trainer does next, as one generator.

It yields commands (`commands`) and is sent what they end with, so it reads as the timeline of a
run. The driver in `loop` executes the commands on devices and files; the simulation of faults
executes the same ones in virtual time.

A trainer is a snapshot and a log of batches. It loads a snapshot, of step r, and trains the logged
steps r + 1 to s again without asking anybody. Then it takes step s + 1. A step's batch is in the
log before anybody learns of the step, so a step that was reported is never undone.

Steps overlap: while one is computed, its batch is written to the log, and the step before it is
reported. The commands that wait for these (`AwaitLog`, `AwaitReports`) say what has to be over.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Mapping
from typing import Any, TypeVar

from rl_sync.roles.trainer.commands import (
    AbandonRun,
    AnnounceBeginning,
    AnnounceGoingOn,
    AwaitLog,
    AwaitReports,
    BeginEnd,
    EndTraining,
    EvaluateStep,
    GiveGroupsBack,
    Initialize,
    LogBatch,
    OpenStreams,
    OthersFailedError,
    PublishVersion,
    Restore,
    RestoreNewest,
    SaveInMemory,
    SaveSnapshot,
    ServeWeights,
    StartingPoint,
    StopAskedError,
    TakeBatch,
    TrainerCommand,
    TrainStep,
)
from rl_sync.roles.trainer.origins import leading_steps, oldest_version
from rl_sync.schedule import SyncSchedule

T = TypeVar("T")
Commands = Generator[TrainerCommand, Any, T]
"""Commands in their order; each is sent what it ends with. The last is followed by a T."""


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
class LeftBehind:
    """State of the run where a trainer begins, or is started again.

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


@dataclasses.dataclass
class TrainerLife:
    """A trainer from its first look at what there is to its end.

    Attributes:
      plan: settings.
      found: what an earlier trainer has left behind.
      step: step of the state.
      schedule: sync schedule, which counts from where the run started once that is known.
      is_announced: whether the others know where the trainer starts.
      is_ending: whether nothing but the end follows; which no failure changes any more.
    """

    plan: TrainerPlan
    found: LeftBehind
    step: int = 0
    schedule: SyncSchedule = dataclasses.field(init=False)
    is_announced: bool = False
    is_ending: bool = False
    _point: StartingPoint | None = None

    def __post_init__(self) -> None:
        self.schedule = self.plan.schedule

    def commands(self) -> Commands[None]:
        """Restores or makes a state, trains step after step, and saves the last one.

        `StopAskedError` and `OthersFailedError` are thrown in at the command that met them, but not
        once `is_ending` holds.
        """
        given_back: str | None = "the run ended"
        try:
            self._point = point = yield from self._restored()
            yield from self._begun(point)
            yield from self._trained(point)
        except StopAskedError as stop:
            if not self.is_announced:
                return  # SFT has saved its state.
            given_back = str(stop)
        except OthersFailedError:
            if not self.is_announced:
                if self._point is not None and not self.found.snapshots and self.step == 0:
                    with contextlib.suppress(StopAskedError):
                        yield SaveSnapshot(0, waits=True)  # So that its SFT is not lost.
                return
            given_back = None
        self.is_ending = True
        yield AwaitReports()
        if given_back is not None:
            yield GiveGroupsBack(given_back)
        yield BeginEnd()
        yield SaveSnapshot(self.step, waits=True)
        if self.step == self.plan.steps:
            yield EvaluateStep(self.step)
        yield EndTraining(self.step)

    def _restored(self) -> Commands[StartingPoint]:
        """Loads or makes the state that the trainer starts from."""
        known, snapshots, steps = self.found.known, self.found.snapshots, self.plan.steps
        if known is None:
            self.step = yield RestoreNewest() if snapshots else Initialize()
            return StartingPoint.at(self.step)
        self.schedule = dataclasses.replace(self.schedule, start=known.start)
        reaches, counted = self.found.reaches, known.counted
        for step in leading_steps(reaches, self.schedule, counted, steps):
            restored: int | None = yield Restore(step) if step in snapshots else Initialize()
            if restored is not None:
                break
        else:
            yield AbandonRun(counted)
            raise AssertionError("an abandoned run ends the trainer")
        self.step = restored
        return StartingPoint(
            start=known.start,
            step=restored,
            counted=counted,
            logged=reaches[restored],
            oldest_version=oldest_version(self.schedule, counted, steps),
            goes_on=True,
        )

    def _begun(self, point: StartingPoint) -> Commands[None]:
        """Says where the trainer begins or goes on, and publishes the state if it is needed."""
        known, step = self.found.known, self.step
        self.schedule = dataclasses.replace(self.schedule, start=point.start)
        if known is None:
            if not self.found.snapshots:
                yield EvaluateStep(0)
            yield AnnounceBeginning(step)
        else:
            if step == 0 and 0 not in known.evaluated:
                yield EvaluateStep(0)
            yield AnnounceGoingOn(known.counted, step)
        self.is_announced = True
        yield OpenStreams(point)
        if self._is_published(point):
            yield PublishVersion(step)

    def _trained(self, point: StartingPoint) -> Commands[None]:
        """Trains, publishes, saves and evaluates, up to the last step."""
        while self.step < self.plan.steps:
            if point.counted < self.step == point.logged:
                # The master must count what the log has, before it is asked which groups are left.
                yield AwaitReports()
            step = self.step + 1
            yield TakeBatch(step)
            if step > point.logged:
                yield LogBatch(step)
            yield TrainStep(step, is_counted=step <= point.counted)
            self.step = step
            if self._is_published(point):
                yield AwaitLog()  # Before anybody sees what the batch has made.
                yield PublishVersion(step)
            yield ServeWeights()
            if point.counted <= step < self.plan.steps:
                yield from self._kept(step)

    def _kept(self, step: int) -> Commands[None]:
        """Saves and evaluates what is due after a step."""
        plan, known = self.plan, self.found.known
        is_evaluated = known is not None and step in known.evaluated
        evaluates = _is_due(step, plan.evaluate_every_steps) and not is_evaluated
        saves = _is_due(step, plan.save_every_steps) or (evaluates and plan.saves_evaluated)
        if saves or evaluates:
            yield AwaitReports()
        if saves:
            yield SaveSnapshot(step, waits=False)
        elif _is_due(step, plan.memory_every_steps):
            yield SaveInMemory(step)
        if evaluates:
            yield EvaluateStep(step)

    def _is_published(self, point: StartingPoint) -> bool:
        """Says whether the weights of the state are published, and explorers will use them."""
        schedule, step, steps = self.schedule, self.step, self.plan.steps
        is_exact = schedule.pull == "exact"
        if step < point.oldest_version:
            return False
        if is_exact and point.counted >= steps:
            return False  # All groups are trained: explorers leave, and would not come for it.
        first_user = schedule.first_user(step) if is_exact else step + 1
        return schedule.publishes_after(step) and first_user <= steps


def _is_due(step: int, every_steps: int) -> bool:
    """Says whether a step is a multiple of `every_steps`; 0 for never."""
    return every_steps > 0 and step % every_steps == 0
