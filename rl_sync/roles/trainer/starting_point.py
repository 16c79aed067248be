"""The point from which a trainer begins, resumes, or goes on after its death."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from rl_sync.checkpoints.batch_log import BatchLog
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
from rl_sync.schedule import SyncSchedule

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
        settings = self.session.settings
        schedule = dataclasses.replace(settings.schedule, start=progress.start)
        oldest = _oldest_version(schedule, progress.step)
        if settings.is_joint and schedule.pull == "exact" and self.log and self.session.leads:
            self.log.forget_after(progress.step)  # All buffered groups are generated again.
        state = self._led_to(oldest, progress)
        step = int(state.step)
        told = f"the trainer goes on from its snapshot of step {step}"
        self.session.call(EnterPhase("rl", told))
        point = StartingPoint(
            start=progress.start,
            step=step,
            counted=progress.step,
            logged=self.session.agree("logged", lambda: self._reach(step, progress.step)),
            oldest_version=oldest,
            goes_on=True,
            evaluated=frozenset(progress.evaluated),
        )
        if step == 0 and self.first_moment not in point.evaluated:
            self.evaluate(state, self.first_moment)
        return state, point

    def _led_to(self, oldest: int, progress: Progress) -> TrainState:
        """Returns a state that leads to a version, and to the last step that the master counts."""
        found = self.session.agree("snapshots", lambda: self._leading(oldest, progress.step))
        for step in found:
            try:
                return self.snapshots.load(step)
            except SnapshotError as error:
                _log.warning("%s An earlier one is used.", error)
        from_start = self.session.agree("start", lambda: self._reach(0, progress.step))
        if progress.start == 0 and from_start >= progress.step:
            return self.initial()
        raise RunEndedError(
            "The trainer cannot go on in place: no snapshot and log of batches lead to"
            f" step {progress.step}, which was trained before it died. The same command goes on"
            " from the newest snapshot."
        )

    def _leading(self, oldest: int, counted: int) -> list[int]:
        """Lists the steps of snapshots that lead to a version and to a step, the newest first."""
        steps = [step for step in snapshot_steps(self.snapshots.directory) if step <= oldest]
        return [step for step in reversed(steps) if self._reach(step, counted) >= counted]

    def _reach(self, start: int, counted: int) -> int:
        """Returns the last step whose batch is at hand, of those that follow `start`."""
        if not self.session.settings.explorers:
            return counted  # Batches of data are drawn, and can be drawn again.
        return start if self.log is None else self.log.reach(start)


def _oldest_version(schedule: SyncSchedule, trained: int) -> int:
    """Returns the oldest version that explorers may ask for once a step is trained."""
    return schedule.exact_version(trained + 1) if schedule.pull == "exact" else trained
