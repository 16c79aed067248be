"""The trainer's snapshots in a run: when they are saved, loaded and kept."""

from __future__ import annotations

import dataclasses
import functools
import logging
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import jax

from rl_sync.checkpoints.adapted_loading import load_adapted
from rl_sync.checkpoints.batch_log import BatchLog
from rl_sync.checkpoints.snapshots import (
    SAVED_SECS,
    SnapshotError,
    latest_snapshot,
    load_snapshot,
    newest_whole,
    on_host,
    read_metadata,
    save_snapshot,
    set_aside,
    snapshot_steps,
)
from rl_sync.clock import now_secs
from rl_sync.cluster.session import Session
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.learning.opt_state import all_finite
from rl_sync.messages.events import Position, SnapshotSaved
from rl_sync.messages.master_calls import AskKeptSnapshots, AskPosition, EnterPhase, Happened
from rl_sync.records.spans import SpanKind
from rl_sync.replay.replay_interface import ReplayError
from rl_sync.roles.assembly.parameters import Parameters
from rl_sync.roles.trainer.actor import Trainer, TrainState
from rl_sync.roles.trainer.origins import first_logged, still_needed
from rl_sync.schedule import SyncSchedule
from rl_sync.types import Params
from rl_sync.weights.agreement import Agree
from rl_sync.weights.storage import MismatchError

_all_finite = jax.jit(all_finite)
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class SnapshotKeeper:
    """Saves and loads the trainer's state; all of the trainer's processes call it together.

    Attributes:
      session: the trainer's session.
      trainer: the actor.
      parameters: the part of the parameters that snapshots hold.
      directory: folder of the snapshots.
      log: log of batches since the oldest snapshot; None if there is none.
      save_buffer: writes a checkpoint of the replay buffer; None if there is none.
      on_saved: called once a snapshot is written.
      processes: the trainer's processes, by their indices in their cluster.
      memory: folder of the snapshots in memory; None if there are none.
    """

    session: Session
    trainer: Trainer
    parameters: Parameters
    directory: Path
    log: BatchLog | None
    save_buffer: Callable[[], object] | None
    processes: Sequence[int]
    on_saved: Callable[[], None] = lambda: None
    memory: Path | None = None
    _writer: ThreadPoolExecutor = dataclasses.field(
        default_factory=lambda: ThreadPoolExecutor(1, "snapshots")
    )
    _writing: Future[None] | None = None
    _remembering: Future[None] | None = None
    _agree: Agree = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._agree = self.session.team.thread("snapshots")

    def latest(self) -> int | None:
        """Returns the step of the newest snapshot, None if there is none."""
        return self.session.agree("latest snapshot", lambda: latest_snapshot(self.directory))

    def steps(self, *, in_memory: bool = False) -> list[int]:
        """Returns the steps of the snapshots on disk, or with `in_memory` of all, in order."""
        memory = self.memory if in_memory else None

        def found() -> list[int]:
            remembered = [] if memory is None else snapshot_steps(memory)
            return sorted({*snapshot_steps(self.directory), *remembered})

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
        if not bool(_all_finite(state.params)):
            raise RunEndedError(
                f"The parameters after trainer step {step} are not finite, so they are not saved."
            )
        metadata = {
            "position": self.session.call(AskPosition())._asdict(),
            "base_digest": self.parameters.base_digest(state.params),
            SAVED_SECS: now_secs(),
        }
        kept = state._replace(params=self.parameters.kept(state.params))
        needed = still_needed(
            schedule, step, snapshot_steps(self.directory), self.session.settings.trainer.steps
        )
        if not waits:
            with self.session.spans.span(SpanKind.SNAPSHOT, step=step):
                kept = self._copied(kept)
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
        if is_busy or not bool(_all_finite(state.params)):
            return
        metadata = {"base_digest": self.parameters.base_digest(state.params)}
        kept = state._replace(params=self.parameters.kept(state.params))
        needed = still_needed(
            schedule, step, snapshot_steps(self.memory), self.session.settings.trainer.steps
        )
        with self.session.spans.span(SpanKind.SNAPSHOT, step=step, tier="memory"):
            kept = self._copied(kept)
        remember = functools.partial(self._remember, step, kept, metadata, needed)
        self._remembering = self._writer.submit(self._agreeing, remember)

    def _copied(self, state: TrainState) -> TrainState:
        """Returns a copy of a state, which outlives its donation to the next step."""
        copy: TrainState = set_aside(state) if len(self.processes) > 1 else on_host(state)
        return copy

    def _agreeing(self, write: Callable[[], None]) -> None:
        """Writes in the thread, in agreement with the threads of the other processes."""
        with self.session.agreeing(self._agree):
            write()

    def _remember(
        self, step: int, state: TrainState, metadata: dict[str, Any], needed: Sequence[int]
    ) -> None:
        assert self.memory is not None
        try:
            save_snapshot(
                self.memory,
                step,
                state,
                metadata,
                keep=1,
                kept=needed,
                processes=self.processes,
                agree=self.session.agree,
            )
        except SnapshotError as error:
            self.memory = None
            _log.warning("There are no more snapshots in memory. %s", error)

    def forget_memory(self) -> None:
        """Deletes the snapshots in memory."""
        if self._remembering is not None:
            wait([self._remembering])
        memory = self.memory
        if memory is not None:
            self.session.agree(
                "forget the memory", lambda: shutil.rmtree(memory, ignore_errors=True)
            )

    def _settle(self) -> None:
        """Waits until the last snapshot is written."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        if not writing.done():
            with self.session.spans.span(SpanKind.WAIT, reason="a snapshot", for_whom="the disk"):
                wait([writing])
        writing.result()

    def _write(
        self, step: int, state: TrainState, metadata: dict[str, Any], needed: Sequence[int]
    ) -> None:
        """Writes a snapshot, and then deletes what it makes superfluous.

        Args:
          needed: snapshots that explorers may still need.
        """
        checkpoint = self.session.settings.checkpoint
        keep, hours = checkpoint.keep, checkpoint.keep_every_hours
        with self.session.spans.span(SpanKind.SNAPSHOT, step=step):
            save_snapshot(
                self.directory,
                step,
                state,
                metadata,
                keep=keep,
                kept=[*self._best(), *needed],
                keep_every_secs=None if hours is None else hours * 3600,
                processes=self.processes,
                agree=self.session.agree,
            )
        self.session.call(Happened(SnapshotSaved(step)))
        self.session.agree("the buffer's checkpoint", self._save_buffer)
        if self.log is not None and self.session.leads:
            self.log.forget(first_logged(snapshot_steps(self.directory), keep, needed) - 1)
        self.on_saved()

    def load(self, step: int) -> TrainState:
        """Returns the state of a snapshot, from memory if it is there.

        Raises:
          SnapshotError: it is damaged.
        """
        if self.memory is not None and step in self.session.agree(
            "in memory", lambda: snapshot_steps(self.memory or self.directory)
        ):
            try:
                return self._load(self.memory, step)
            except SnapshotError as error:
                if step not in self.steps():
                    raise
                _log.warning("%s The one on disk is used.", error)
        return self._load(self.directory, step)

    def _load(self, directory: Path, step: int) -> TrainState:
        _, state, metadata = load_snapshot(
            directory, step, self._abstract(), self.processes, self.session.agree
        )
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
            _, state, metadata = load_snapshot(
                self.directory, None, abstract, self.processes, self.session.agree, aside=True
            )
        except MismatchError:
            if not self.session.settings.launch.resume_changed:
                raise
            state, metadata = self._adapted(abstract)
        else:
            state = self._completed(state, metadata)
        return state, Position.of_json(metadata["position"])

    def _abstract(self) -> TrainState:
        abstract = self.trainer.abstract()
        return abstract._replace(params=self.parameters.kept(abstract.params))

    def _completed(self, state: TrainState, metadata: dict[str, Any]) -> TrainState:
        params = self.parameters.completed(state.params, metadata["base_digest"])
        return state._replace(params=self.trainer.held(params))

    def _adapted(self, abstract: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Loads the fields that fit the settings from the newest snapshot; others start anew."""
        step = self.session.agree("newest whole", lambda: newest_whole(self.directory))
        assert step is not None
        metadata = read_metadata(self.directory, step)

        def begin(params: Params) -> TrainState:
            whole = self.parameters.completed(params, metadata["base_digest"])
            return self.trainer.begin(self.trainer.start(whole))

        state, anew = load_adapted(self.directory, step, abstract, begin)
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
