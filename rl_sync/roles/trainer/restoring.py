"""The state that a trainer starts from: what there is, how it is loaded, and who is told."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from rl_sync.checkpoints.batch_log import BatchLog
from rl_sync.checkpoints.snapshots import SnapshotError
from rl_sync.cluster.session import Session
from rl_sync.messages.events import Position
from rl_sync.messages.master_calls import AskProgress, EnterPhase, Progress, Report, TrainerReady
from rl_sync.messages.run_result import RunResult
from rl_sync.roles.trainer.actor import TrainState
from rl_sync.roles.trainer.life import KnownRun, LeftBehind
from rl_sync.roles.trainer.snapshot_keeper import SnapshotKeeper

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class StateRestorer:
    """Loads the state that a trainer starts from.

    Attributes:
      session: the trainer's session.
      snapshots: the trainer's snapshots.
      log: log of batches; None if batches can be drawn again.
      moment: returns the name of the evaluation after a step.
    """

    session: Session
    snapshots: SnapshotKeeper
    log: BatchLog | None
    moment: Callable[[int], str]
    _position: Position = dataclasses.field(
        default_factory=lambda: Position(step=0, next_ordinal=0, again=(), next_lease=0)
    )
    _progress: Progress | None = None

    def look(self) -> LeftBehind:
        """Returns what an earlier trainer has left behind, and what the master knows of it."""
        self._progress = progress = self.session.call(AskProgress())
        if progress is None:
            return LeftBehind(snapshots=tuple(self.snapshots.steps()))
        found = tuple(self.snapshots.steps(in_memory=True))
        counted = progress.step
        log = self.log if self.session.leads else None
        if log is not None and progress.drops_buffered:
            log.forget_after(counted)
        evaluated = {*progress.evaluated}
        return LeftBehind(
            KnownRun(
                progress.start,
                counted,
                frozenset(step for step in range(counted + 1) if self.moment(step) in evaluated),
            ),
            found,
            self.session.agree(
                "what the log leads to",
                lambda: {one: log.reach(one) if log else counted for one in (0, *found)},
            ),
        )

    def newest(self) -> TrainState:
        """Loads the newest snapshot that is not damaged.

        Raises:
          MismatchError, SnapshotError: see `SnapshotKeeper.load_newest`.
        """
        state, self._position = self.snapshots.load_newest()
        self.session.resumed(int(state.step))
        self.session.call(Report(RunResult(resumed=int(state.step))))
        return state

    def saved(self, step: int) -> TrainState | None:
        """Loads a snapshot; None if it is damaged."""
        try:
            return self.snapshots.load(step)
        except SnapshotError as error:
            _log.warning("%s An earlier one is used.", error)
            return None

    def announce_beginning(self, step: int) -> None:
        """Tells the master that the run begins after a step.

        Batches of later steps and snapshots in memory are deleted before: a trainer that dies now
        must not take them for those of this run.
        """
        self.snapshots.forget_memory()
        if self.log is not None and self.session.leads:
            self.log.forget_after(step)
        self.session.call(TrainerReady(self._position))

    def announce_going_on(self, counted: int, step: int) -> None:
        """Tells the master that the run goes on after step `counted`, from the state of a step."""
        told = f"the trainer goes on after step {counted}, from its state of step {step}"
        self.session.call(EnterPhase("rl", told))
        if self._progress is not None and self._progress.is_new_attempt:
            self.session.spans.resume(counted)
