"""The trainer's loop: SFT, then read a batch, train, publish, step after step."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax

from rl_sync.checkpoints.adapted_loading import load_adapted
from rl_sync.checkpoints.ledger import ConsumptionRecord
from rl_sync.checkpoints.snapshots import (
    latest_snapshot,
    load_snapshot,
    newest_whole,
    read_metadata,
    save_snapshot,
)
from rl_sync.cluster.master_calls import (
    AskKeptSnapshots,
    AskPosition,
    EnterPhase,
    Happened,
    Report,
    TrainerReady,
)
from rl_sync.cluster.parallel_imports import settle
from rl_sync.cluster.rpc import RemoteError
from rl_sync.cluster.run_result import RunResult
from rl_sync.cluster.session import RunStoppedError, Session
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.learning.batching import MIXED, Batching
from rl_sync.learning.opt_state import all_finite
from rl_sync.records.spans import SpanKind
from rl_sync.replay.replay_interface import ReplayError
from rl_sync.roles.evaluator import Measure, await_evaluations
from rl_sync.roles.master.events import Position, SnapshotSaved
from rl_sync.roles.parameters import Parameters
from rl_sync.roles.trainer.actor import Trainer, TrainState
from rl_sync.roles.trainer.batch_reader import GroupSource
from rl_sync.roles.trainer.batch_shares import BatchPlacer
from rl_sync.roles.trainer.compiled_steps import CompiledSteps
from rl_sync.roles.trainer.rollout_recorder import RolloutRecorder
from rl_sync.roles.trainer.sft_phase import SftPhase
from rl_sync.roles.trainer.steps_in_flight import DemonstrationsOf, StepsInFlight
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.ends import TrainerEnd
from rl_sync.types import Params, TrainBatch
from rl_sync.weights.digest import digest
from rl_sync.weights.ends_interface import WeightsTransferError
from rl_sync.weights.storage import MismatchError

# Failures of other roles, or of the connections to them: the trainer's own state is intact.
_OF_OTHERS = (TimeoutError, WeightsTransferError, ReplayError, RemoteError)
_all_finite = jax.jit(all_finite)
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class TrainerLoop:
    """Drives the trainer actor through a run.

    Attributes:
      session: session of this process.
      trainer: the actor.
      batching: layout of its batches.
      parameters: start of the parameters, and their published part.
      sft: SFT steps before the first rollout.
      evaluator: measures accuracy on held-out problems.
      end: makes the transfer's end that publishes weights, given the schedule, which knows where
        the run starts.
      reader: makes the reader of batches, given the schedule and a function to call while it waits.
      snapshots: folder of snapshots.
      processes: the trainer's processes, by their indices in their cluster.
      save_buffer: writes a checkpoint of the replay buffer; None if there is none.
      demonstrations: see `StepsInFlight`.
      compile_threads: number of threads that compile the step for all shapes of batches; 0 for one
        thread, which compiles only for the largest batch.
      recorder: makes the recorder of rollouts from the first step of the run; None if there is
        none.
    """

    session: Session
    trainer: Trainer
    batching: Batching
    parameters: Parameters
    sft: SftPhase
    evaluator: Measure
    end: Callable[[SyncSchedule], TrainerEnd]
    reader: Callable[[SyncSchedule, Callable[[], None]], GroupSource]
    snapshots: Path
    processes: Sequence[int]
    save_buffer: Callable[[], object] | None = None
    demonstrations: DemonstrationsOf | None = None
    compile_threads: int = 0
    recorder: Callable[[int], RolloutRecorder] | None = None
    _steps: CompiledSteps = dataclasses.field(init=False)

    def run(self) -> None:
        """Trains to the last step, or until the run is stopped; saves a snapshot either way.

        Raises:
          TimeoutError: a wait passed its deadline; a snapshot is saved before.
          PeerLostError: the master is gone.
          WeightsTransferError: a version could not be published; a snapshot is saved before.
          ReplayError: the replay server is gone; a snapshot is saved before.
          RemoteError: the master rejected a call; a snapshot is saved before.
        """
        try:
            state = self._start()
        except RunStoppedError:
            return  # Stopped in SFT, which has saved its state.
        start = int(state.step)
        schedule = dataclasses.replace(self.session.settings.schedule, start=start)
        workdir = self.session.settings.workdir
        consumed = ConsumptionRecord(workdir if self.session.leads else None, start)
        placer = BatchPlacer(self.session, self.trainer, self.processes)
        recorder = self.recorder(start) if self.recorder and self.session.leads else None
        stepping = StepsInFlight(
            self.session,
            self.batching,
            self._steps,
            place=placer.place,
            consumed=consumed,
            demonstrations=self.demonstrations,
            recorder=recorder,
        )
        ending, whole = "the run ended", True
        broken: Exception | None = None
        end: TrainerEnd | None = None
        reader: GroupSource | None = None
        try:
            self.session.check()
            end = self.end(schedule)
            reader = self.reader(schedule, end.serve)
            if self._is_wanted(schedule, start):
                end.publish(start, self.parameters.published(state.params))
            for step in range(start + 1, self.session.settings.trainer.steps + 1):
                batch = reader.next(step)
                whole = False  # A step that fails has already donated the state.
                state = stepping.take(state, step, *batch)
                whole = True
                if self._is_wanted(schedule, step):
                    if end.awaits(step):
                        stepping.settle()
                    end.publish(step, self.parameters.published(state.params))
                end.serve()
                self._look_after(state, step, stepping)
        except RunStoppedError as error:
            ending = str(error)
        except _OF_OTHERS as error:
            if not whole:
                raise
            _log.error("The trainer cannot continue, and saves its state: %s", error)
            ending, broken = "the trainer could not go on", error
        stepping.settle()
        if recorder is not None:
            recorder.close()
        if reader is not None and broken is None:
            reader.close(ending)
        self._finish(state)
        if broken is not None:
            raise broken
        if end is not None:
            end.close()
        consumed.close()

    def _start(self) -> TrainState:
        """Returns the state of the newest snapshot, or of the initial policy after its SFT."""
        abstract = self.trainer.abstract()
        self._steps = CompiledSteps(self.session, self.trainer, abstract, self.compile_threads or 1)
        for batch in self._expected():
            if self.demonstrations is not None:
                batch = batch._replace(demonstrations=self.demonstrations(0))
            self._steps.prepare(batch)
        position = Position(step=0, next_ordinal=0, again=(), next_lease=0)
        if self._latest() is not None:
            state, position = self._resumed(abstract)
        else:
            initial = self.parameters.initial
            state = self.trainer.begin(self.sft.run(lambda: self.trainer.start(initial())))
            try:
                self._evaluate(state, f"before {self._learning}")
            except _OF_OTHERS:
                self._save(state)
                raise
        self.session.call(TrainerReady(position))
        self.session.call(EnterPhase("rl"))
        self.session.facts.clear()  # These facts are about SFT.
        settle()
        return state

    def _expected(self) -> Iterable[TrainBatch]:
        """Returns the shapes of batches for which the step is compiled ahead."""
        if self.compile_threads:
            return self.batching.shapes()
        # Mixed rows almost never form the largest batch.
        return [] if self.batching.kind in MIXED else [self.batching.largest()]

    def _resumed(self, abstract: TrainState) -> tuple[TrainState, Position]:
        """Returns the state of the newest undamaged snapshot, and the master's position then."""
        kept = abstract._replace(params=self.parameters.kept(abstract.params))
        try:
            step, state, metadata = load_snapshot(
                self.snapshots, None, kept, self.processes, self.session.agree, aside=True
            )
        except MismatchError:
            if not self.session.settings.launch.resume_changed:
                raise
            step, state, metadata = self._adapted(kept)
        else:
            params = self.parameters.completed(state.params, metadata["base_digest"])
            state = state._replace(params=params)
        self.session.resumed(step)
        self.session.call(Report(RunResult(resumed=step)))
        return state, Position.of_json(metadata["position"])

    def _adapted(self, kept: TrainState) -> tuple[int, TrainState, dict[str, Any]]:
        """Loads the fields that fit the settings from the newest snapshot; others start anew."""
        step = self.session.agree("newest whole", lambda: newest_whole(self.snapshots))
        assert step is not None
        metadata = read_metadata(self.snapshots, step)

        def begin(params: Params) -> TrainState:
            whole = self.parameters.completed(params, metadata["base_digest"])
            return self.trainer.begin(self.trainer.start(whole))

        state, anew = load_adapted(self.snapshots, step, kept, begin)
        what = ", ".join(anew).replace("_", " ")
        self.session.call(EnterPhase("start", f"started anew, because it has changed: {what}"))
        return step, state, metadata

    def _is_wanted(self, schedule: SyncSchedule, step: int) -> bool:
        """Says whether the weights after a step are published, and explorers will use them."""
        steps = self.session.settings.trainer.steps
        first_user = schedule.first_user(step) if schedule.pull == "exact" else step + 1
        return schedule.publishes_after(step) and first_user <= steps

    def _look_after(self, state: TrainState, step: int, stepping: StepsInFlight) -> None:
        """Evaluates and saves if the settings ask for it; `_finish` does it for the last step."""
        settings = self.session.settings
        evaluates = (
            _is_due(step, settings.evaluation.every_steps) and not settings.evaluates_on_explorers
        )
        saves = _is_due(step, settings.checkpoint.every_steps)
        saves = saves or (evaluates and settings.checkpoint.best is not None)
        if step == settings.trainer.steps or not (evaluates or saves):
            return
        stepping.settle()
        if saves:
            self._save(state)
        if evaluates:
            self._evaluate(state, f"after step {step}")

    def _finish(self, state: TrainState) -> None:
        """Saves the state; after the last step it also evaluates."""
        self.session.call(EnterPhase("end"))
        self._save(state)
        if int(state.step) == self.session.settings.trainer.steps:
            self._evaluate(state, f"after {self._learning}")
            await_evaluations(self.session)
        self.session.call(Report(RunResult(digest=digest(state.params))))

    @property
    def _learning(self) -> str:
        return self.session.settings.algorithm.learning

    def _evaluate(self, state: TrainState, moment: str) -> None:
        self.evaluator.hand_in(state.params, moment, int(state.step))

    def _save(self, state: TrainState) -> None:
        step = int(state.step)
        if self._latest() != step:
            self._write_snapshot(state, step)
            self.sft.forget()

    def _write_snapshot(self, state: TrainState, step: int) -> None:
        if not bool(_all_finite(state.params)):
            raise RunEndedError(
                f"The parameters after trainer step {step} are not finite, so they are not saved."
            )
        with self.session.spans.span(SpanKind.SNAPSHOT, step=step):
            metadata = {
                "position": self.session.call(AskPosition())._asdict(),
                "base_digest": self.parameters.base_digest(state.params),
            }
            save_snapshot(
                self.snapshots,
                step,
                state._replace(params=self.parameters.kept(state.params)),
                metadata,
                keep=self.session.settings.checkpoint.keep,
                kept=self._kept(),
                processes=self.processes,
                agree=self.session.agree,
            )
        self.session.call(Happened(SnapshotSaved(step)))
        self.session.agree("the buffer's checkpoint", self._save_buffer)

    def _save_buffer(self) -> None:
        """Writes a checkpoint of the buffer; without one, its groups would be generated again."""
        if self.save_buffer is None:
            return
        try:
            self.save_buffer()
        except ReplayError as error:
            _log.warning("There is no new checkpoint of the replay buffer: %s", error)

    def _kept(self) -> list[int]:
        """Returns the steps whose snapshots are kept, however many newer ones there are."""
        best = self.session.settings.checkpoint.best
        return [] if best is None else self.session.call(AskKeptSnapshots())

    def _latest(self) -> int | None:
        return self.session.agree("latest snapshot", lambda: latest_snapshot(self.snapshots))


def _is_due(step: int, every_steps: int) -> bool:
    """Says whether a step is a multiple of `every_steps`; 0 for never."""
    return every_steps > 0 and step % every_steps == 0
