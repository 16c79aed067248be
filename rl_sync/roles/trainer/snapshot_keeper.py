"""The trainer's snapshots in a run: what they hold, and when they are saved, loaded and kept."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence

from rl_sync.checkpoints.batch_log import BatchLog
from rl_sync.checkpoints.snapshot_folder import SnapshotFolder
from rl_sync.checkpoints.snapshots import SAVED_SECS, Retention, SnapshotError
from rl_sync.clock import now_secs
from rl_sync.cluster.session import Session
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.messages.events import Position, SnapshotSaved
from rl_sync.messages.master_calls import AskKeptSnapshots, AskPosition, EnterPhase, Happened
from rl_sync.ports.clock_port import Future, Pool
from rl_sync.records.json_lines import JsonObject
from rl_sync.records.spans import SpanKind
from rl_sync.replay.replay_interface import ReplayError
from rl_sync.roles.assembly.parameters import Parameters
from rl_sync.roles.trainer.actor import Trainer, TrainState
from rl_sync.roles.trainer.origins import first_logged, still_needed
from rl_sync.schedule import SyncSchedule
from rl_sync.types import Params
from rl_sync.weights.agreement import Agree
from rl_sync.weights.storage import MismatchError

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class SnapshotKeeper:
    """Saves and loads the trainer's state; all of the trainer's processes call it together.

    Attributes:
      session: the trainer's session.
      trainer: the actor.
      parameters: the part of the parameters that snapshots hold.
      disk: the snapshots on disk.
      log: log of batches since the oldest snapshot; None if there is none.
      save_buffer: writes a checkpoint of the replay buffer; None if there is none.
      on_saved: called once a snapshot is written.
      memory: the snapshots in memory; None if there are none.
    """

    session: Session
    trainer: Trainer
    parameters: Parameters
    disk: SnapshotFolder
    log: BatchLog | None
    save_buffer: Callable[[], object] | None
    on_saved: Callable[[], None] = lambda: None
    memory: SnapshotFolder | None = None
    _writer: Pool = dataclasses.field(init=False)
    _writing: Future[None] | None = None
    _remembering: Future[None] | None = None
    _agree: Agree = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._agree = self.session.team.thread("snapshots")
        self._writer = self.session.clock.pool(1, "snapshots")

    def latest(self) -> int | None:
        """Returns the step of the newest snapshot, None if there is none."""
        return self.session.agree("latest snapshot", self.disk.newest)

    def steps(self, *, in_memory: bool = False) -> list[int]:
        """Returns the steps of the snapshots on disk, or with `in_memory` of all, in order."""
        memory = self.memory if in_memory else None

        def found() -> list[int]:
            remembered = [] if memory is None else memory.steps()
            return sorted({*self.disk.steps(), *remembered})

        return self.session.agree("snapshots", found)

    def save(self, state: TrainState, schedule: SyncSchedule, *, waits: bool) -> None:
        """Saves a state, unless the newest snapshot is of its step already.

        A thread writes it. Without `waits` only a copy of the state is waited for, and an error of
        the thread is raised by the next call.

        Raises:
          RunEndedError: the parameters are not finite.
          SnapshotError: the state cannot be saved, or the one before could not be.
        """
        self._settle()
        step = int(state.step)
        if self.latest() == step:
            return
        if not self.trainer.is_finite(state):
            raise RunEndedError(
                f"The parameters after trainer step {step} are not finite, so they are not saved."
            )
        metadata = {
            "position": self.session.call(AskPosition())._asdict(),
            "base_digest": self.parameters.base_digest(state.params),
            SAVED_SECS: now_secs(),
        }
        kept = self._kept(state)
        steps = self.session.settings.trainer.steps
        needed = still_needed(schedule, step, self.disk.steps(), steps)
        if not waits:
            with self.session.spans.span(SpanKind.SNAPSHOT, step=step):
                kept = self.disk.copied(kept)
        write = functools.partial(self._write, step, kept, metadata, needed)
        self._writing = self._writer.submit(self._agreeing, write)
        if waits:
            self._settle()

    def save_in_memory(self, state: TrainState, schedule: SyncSchedule) -> None:
        """Saves a state in memory, unless the one before is still being written.

        Only a copy of the state is waited for. If the memory is full, the run goes on without
        these snapshots.
        """
        if self.memory is None:
            return
        is_busy = self.session.agree(
            "busy",
            lambda: any(
                one is not None and not one.done() for one in (self._writing, self._remembering)
            ),
        )
        step = int(state.step)
        if is_busy or not self.trainer.is_finite(state):
            return
        metadata = {"base_digest": self.parameters.base_digest(state.params)}
        kept = self._kept(state)
        steps = self.session.settings.trainer.steps
        needed = still_needed(schedule, step, self.memory.steps(), steps)
        with self.session.spans.span(SpanKind.SNAPSHOT, step=step, tier="memory"):
            kept = self.memory.copied(kept)
        remember = functools.partial(self._remember, step, kept, metadata, needed)
        self._remembering = self._writer.submit(self._agreeing, remember)

    def _agreeing(self, write: Callable[[], None]) -> None:
        """Writes in the thread, in agreement with the threads of the other processes."""
        with self.session.agreeing(self._agree):
            write()

    def _remember(
        self, step: int, state: TrainState, metadata: JsonObject, needed: Sequence[int]
    ) -> None:
        assert self.memory is not None
        try:
            self.memory.save(step, state, metadata, Retention(1, needed))
        except SnapshotError as error:
            self.memory = None
            _log.warning("There are no more snapshots in memory. %s", error)

    def forget_memory(self) -> None:
        """Deletes the snapshots in memory."""
        if self._remembering is not None:
            self._remembering.exception()
        memory = self.memory
        if memory is not None:
            self.session.agree("forget the memory", memory.clear)

    def _settle(self) -> None:
        """Waits until the last snapshot is written."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        if not writing.done():
            with self.session.spans.span(SpanKind.WAIT, reason="a snapshot", for_whom="the disk"):
                writing.exception()
        writing.result()

    def _write(
        self, step: int, state: TrainState, metadata: JsonObject, needed: Sequence[int]
    ) -> None:
        """Writes a snapshot, and then deletes what it makes superfluous.

        Args:
          needed: snapshots that explorers may still need.
        """
        checkpoint = self.session.settings.checkpoint
        keep, hours = checkpoint.keep, checkpoint.keep_every_hours
        with self.session.spans.span(SpanKind.SNAPSHOT, step=step):
            retention = Retention(
                keep, [*self._best(), *needed], None if hours is None else hours * 3600
            )
            self.disk.save(step, state, metadata, retention)
        self.session.call(Happened(SnapshotSaved(step)))
        self.session.agree("the buffer's checkpoint", self._save_buffer)
        if self.log is not None and self.session.leads:
            self.log.forget(first_logged(self.disk.steps(), keep, needed) - 1)
        self.on_saved()

    def load(self, step: int) -> TrainState:
        """Returns the state of a snapshot, from memory if it is there.

        Raises:
          SnapshotError: it is damaged.
        """
        if self.memory is not None and step in self.session.agree("in memory", self.memory.steps):
            try:
                return self._load(self.memory, step)
            except SnapshotError as error:
                if step not in self.steps():
                    raise
                _log.warning("%s The one on disk is used.", error)
        return self._load(self.disk, step)

    def _load(self, folder: SnapshotFolder, step: int) -> TrainState:
        _, state, metadata = folder.load(step, self._abstract())
        return self._completed(state, metadata)

    def load_newest(self) -> tuple[TrainState, Position]:
        """Returns the state of the newest undamaged snapshot, and the master's position then.

        With `launch.resume_changed`, fields that do not fit the settings start anew.

        Raises:
          MismatchError: the snapshot does not fit the settings.
          SnapshotError: all snapshots are damaged.
        """
        abstract = self._abstract()
        try:
            _, state, metadata = self.disk.load(None, abstract)
        except MismatchError:
            if not self.session.settings.launch.resume_changed:
                raise
            state, metadata = self._adapted(abstract)
        else:
            state = self._completed(state, metadata)
        return state, Position.of_json(metadata["position"])

    def _abstract(self) -> TrainState:
        return self._kept(self.trainer.abstract())

    def _kept(self, state: TrainState) -> TrainState:
        """Returns the part of a state that snapshots hold."""
        return state._replace(params=self.parameters.kept(state.params), teachers=None)

    def _completed(self, state: TrainState, metadata: JsonObject) -> TrainState:
        params = self.parameters.completed(state.params, metadata["base_digest"])
        return state._replace(params=self.trainer.held(params))

    def _adapted(self, abstract: TrainState) -> tuple[TrainState, JsonObject]:
        """Loads the fields that fit the settings from the newest snapshot; others start anew."""

        def begin(params: Params, metadata: JsonObject) -> TrainState:
            whole = self.parameters.completed(params, metadata["base_digest"])
            return self.trainer.begin(self.trainer.start(whole))

        state, metadata, anew = self.disk.load_adapted(abstract, begin)
        what = ", ".join(anew).replace("_", " ")
        self.session.call(EnterPhase("start", f"started anew, because it has changed: {what}"))
        return state, metadata

    def _save_buffer(self) -> None:
        """Writes a checkpoint of the buffer; without one, its groups would be generated again."""
        if self.save_buffer is None:
            return
        try:
            self.save_buffer()
        except ReplayError as error:
            _log.warning("There is no new checkpoint of the replay buffer: %s", error)

    def _best(self) -> list[int]:
        """Returns the steps of snapshots that are kept because of their evaluation."""
        best = self.session.settings.checkpoint.best
        return [] if best is None else self.session.call(AskKeptSnapshots())
