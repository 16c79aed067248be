"""The point from which a trainer begins, resumes, or goes on after its death."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

from rl_sync.checkpoints.batch_log import BatchLog
from rl_sync.checkpoints.redo import leading_steps, oldest_version
from rl_sync.checkpoints.snapshots import SnapshotError, snapshot_steps
from rl_sync.cluster.master_calls import (
    AskProgress,
    EnterPhase,
    Progress,
    Report,
    TrainerReady,
)
from rl_sync.cluster.run_result import RunResult
from rl_sync.cluster.session import Session
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.roles.master.events import Position
from rl_sync.roles.trainer.actor import TrainState
from rl_sync.roles.trainer.snapshot_keeper import SnapshotKeeper

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class StartingPoint:
    """Relation of the state of a trainer that starts to the run so far.

    Attributes:
      start: step that the schedule counts from.
      step: step of the state.
      counted: last step that the master counts. Steps up to it are done again, from the log.
      logged: last step whose batch is logged.
      oldest_version: oldest version that explorers may still ask for.
      goes_on: whether the master counted steps of a trainer before this one, which died.
      evaluated: names of the moments whose evaluations have been made.
    """

    start: int
    step: int
    counted: int
    logged: int
    oldest_version: int
    goes_on: bool = False
    evaluated: frozenset[str] = frozenset()

    @classmethod
    def at(cls, step: int) -> StartingPoint:
        """Returns the point of a run that begins or resumes at a step."""
        return cls(start=step, step=step, counted=step, logged=step, oldest_version=step)


@dataclasses.dataclass
class TrainerStart:
    """Finds the state to train from.

    Attributes:
      session: the trainer's session.
      snapshots: the trainer's snapshots.
      log: log of batches; None if there is none.
      initial: makes the initial policy, after its SFT.
      evaluate: evaluates a state at a moment, such as "before RL", unless it was evaluated then.
      first_moment: the moment of the initial policy.
    """

    session: Session
    snapshots: SnapshotKeeper
    log: BatchLog | None
    initial: Callable[[], TrainState]
    evaluate: Callable[[TrainState, str], None]
    first_moment: str

    def find(self) -> tuple[TrainState, StartingPoint]:
        """Returns the state and its point.

        It is the newest snapshot, or the initial policy. If a trainer of this run died, it is a
        snapshot from which the log of batches leads to the last step that the master counts.

        Raises:
          RunStoppedError: the run is being stopped.
          RunEndedError: the trainer cannot go on in place.
        """
        progress = self.session.call(AskProgress())
        if progress is not None:
            return self._going_on(progress)
        state = self._beginning()
        point = StartingPoint.at(int(state.step))
        if self.log is not None and self.session.leads:
            self.log.forget_after(point.step)
        return state, point

    def _beginning(self) -> TrainState:
        if self.snapshots.latest() is not None:
            state, position = self.snapshots.load_newest()
            self.session.resumed(int(state.step))
            self.session.call(Report(RunResult(resumed=int(state.step))))
        else:
            state = self.initial()
            position = Position(step=0, next_ordinal=0, again=(), next_lease=0)
            self.evaluate(state, self.first_moment)
        self.session.call(TrainerReady(position))
        return state

    def _going_on(self, progress: Progress) -> tuple[TrainState, StartingPoint]:
        settings, trained = self.session.settings, progress.step
        schedule = dataclasses.replace(settings.schedule, start=progress.start)
        log = self.log if self.session.leads else None
        if log is not None and progress.drops_buffered:
            log.forget_after(trained)
        found = self.session.agree(
            "where to begin",
            lambda: leading_steps(self.snapshots.directory, log, schedule, trained),
        )
        state = self._first_whole(found, trained)
        step = int(state.step)
        told = f"the trainer goes on after step {trained}, from its state of step {step}"
        self.session.call(EnterPhase("rl", told))
        if progress.is_new_attempt:
            self.session.spans.resume(trained)
        point = StartingPoint(
            start=progress.start,
            step=step,
            counted=trained,
            logged=self.session.agree("logged", lambda: log.reach(step) if log else trained),
            oldest_version=oldest_version(schedule, trained),
            goes_on=True,
            evaluated=frozenset(progress.evaluated),
        )
        if step == 0 and self.first_moment not in point.evaluated:
            self.evaluate(state, self.first_moment)
        return state, point

    def _first_whole(self, steps: Sequence[int], trained: int) -> TrainState:
        """Returns the state of the first of these steps that is not damaged."""
        there = self.session.agree("snapshots", lambda: snapshot_steps(self.snapshots.directory))
        for step in steps:
            if step not in there:
                return self.initial()
            try:
                return self.snapshots.load(step)
            except SnapshotError as error:
                _log.warning("%s An earlier one is used.", error)
        raise RunEndedError(
            f"The trainer cannot go on in place: no snapshot and log of batches lead to step"
            f" {trained}, which was trained before it died. The same command goes on from the"
            " newest snapshot."
        )
