"""The trainer's loop: SFT, then read a batch, train, publish, step after step."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence

from rl_sync.checkpoints.ledger import ConsumptionRecord
from rl_sync.cluster.master_calls import EnterPhase, Report
from rl_sync.cluster.parallel_imports import settle
from rl_sync.cluster.rpc import RemoteError
from rl_sync.cluster.run_result import RunResult
from rl_sync.cluster.session import RunStoppedError, Session
from rl_sync.learning.batching import MIXED, Batching
from rl_sync.replay.replay_interface import ReplayError
from rl_sync.roles.evaluator import Measure, await_evaluations
from rl_sync.roles.parameters import Parameters
from rl_sync.roles.trainer.actor import Trainer, TrainState
from rl_sync.roles.trainer.batch_reader import GroupSource
from rl_sync.roles.trainer.batch_shares import BatchPlacer
from rl_sync.roles.trainer.compiled_steps import CompiledSteps
from rl_sync.roles.trainer.published_digests import PublishedDigests
from rl_sync.roles.trainer.rollout_recorder import RolloutRecorder
from rl_sync.roles.trainer.sft_phase import SftPhase
from rl_sync.roles.trainer.snapshot_keeper import SnapshotKeeper
from rl_sync.roles.trainer.starting_point import StartingPoint, TrainerStart
from rl_sync.roles.trainer.steps_in_flight import DemonstrationsOf, StepsInFlight
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.ends import TrainerEnd
from rl_sync.types import TrainBatch
from rl_sync.weights.digest import digest
from rl_sync.weights.ends_interface import WeightsTransferError
from rl_sync.workdir import Workdir

# Failures of other roles, or of the connections to them: the trainer's own state is intact.
_OF_OTHERS = (TimeoutError, WeightsTransferError, ReplayError, RemoteError)
_log = logging.getLogger(__name__)

MakeSource = Callable[[StartingPoint, SyncSchedule, Callable[[], None]], GroupSource]


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
      source: makes the source of batches, given the starting point, the schedule, and a function to
        call while it waits.
      snapshots: the trainer's snapshots, and its log of batches.
      processes: the trainer's processes, by their indices in their cluster.
      demonstrations: see `StepsInFlight`.
      compile_threads: number of threads that compile the step for all shapes of batches; 0 for one
        thread, which compiles only for the largest batch.
      recorder: makes the recorder of rollouts, given the last step that is recorded already; None
        if there is none.
    """

    session: Session
    trainer: Trainer
    batching: Batching
    parameters: Parameters
    sft: SftPhase
    evaluator: Measure
    end: Callable[[SyncSchedule], TrainerEnd]
    source: MakeSource
    snapshots: SnapshotKeeper
    processes: Sequence[int]
    demonstrations: DemonstrationsOf | None = None
    compile_threads: int = 0
    recorder: Callable[[int], RolloutRecorder] | None = None
    _steps: CompiledSteps = dataclasses.field(init=False)
    _schedule: SyncSchedule = dataclasses.field(init=False)

    def run(self) -> None:
        """Trains to the last step, or until the run is stopped; saves a snapshot either way.

        Raises:
          TimeoutError: a wait passed its deadline; a snapshot is saved before.
          PeerLostError: the master is gone.
          WeightsTransferError: a version could not be published; a snapshot is saved before.
          ReplayError: the replay server is gone; a snapshot is saved before.
          RemoteError: the master rejected a call; a snapshot is saved before.
          RunEndedError: the trainer died before, and cannot go on in place.
        """
        try:
            state, point = self._start()
        except RunStoppedError:
            return  # Stopped in SFT, which has saved its state.
        self._schedule = dataclasses.replace(self.session.settings.schedule, start=point.start)
        leads, workdir = self.session.leads, Workdir(self.session.settings.workdir)
        consumed = ConsumptionRecord(workdir if leads else None, point.counted)
        digests = PublishedDigests(
            workdir.published if leads else None,
            since=None if point.goes_on else point.step,
            exact=self._schedule.pull == "exact",
        )
        recorder = self.recorder(point.counted) if self.recorder and leads else None
        stepping = StepsInFlight(
            self.session,
            self.batching,
            self._steps,
            place=BatchPlacer(self.session, self.trainer, self.processes).place,
            consumed=consumed,
            demonstrations=self.demonstrations,
            recorder=recorder,
        )
        ending, whole = "the run ended", True
        broken: Exception | None = None
        end: TrainerEnd | None = None
        source: GroupSource | None = None
        try:
            self.session.check()
            end = self.end(self._schedule)
            source = self.source(point, self._schedule, end.serve)
            if self._is_wanted(point.step, point):
                self._publish(state, point.step, end, digests)
            for step in range(point.step + 1, self.session.settings.trainer.steps + 1):
                batch = source.next(step)
                whole = False  # A step that fails has already donated the state.
                again = step <= point.counted
                state = stepping.take(state, step, *batch, logged=source.settle, again=again)
                whole = True
                if self._is_wanted(step, point):
                    source.settle()  # Before anybody sees what the batch has made.
                    if end.awaits(step):
                        stepping.settle()
                    self._publish(state, step, end, digests)
                end.serve()
                if step >= point.counted:
                    self._look_after(state, step, stepping, point)
        except RunStoppedError as error:
            ending = str(error)
        except _OF_OTHERS as error:
            if not whole:
                raise
            _log.error("The trainer cannot continue, and saves its state: %s", error)
            ending, broken = "the trainer could not go on", error
        stepping.settle()
        digests.close()
        if recorder is not None:
            recorder.close()
        if source is not None and broken is None:
            source.close(ending)
        self._finish(state)
        if broken is not None:
            raise broken
        if end is not None:
            end.close()
        consumed.close()

    def _start(self) -> tuple[TrainState, StartingPoint]:
        """Returns the state to train from, and how it relates to the run so far."""
        abstract = self.trainer.abstract()
        self._steps = CompiledSteps(self.session, self.trainer, abstract, self.compile_threads or 1)
        for batch in self._expected():
            if self.demonstrations is not None:
                batch = batch._replace(demonstrations=self.demonstrations(0))
            self._steps.prepare(batch)
        initial = self.parameters.initial
        found = TrainerStart(
            self.session,
            self.snapshots,
            self.snapshots.log,
            initial=lambda: self.trainer.begin(self.sft.run(lambda: self.trainer.start(initial()))),
            evaluate=self._evaluate_or_save,
            first_moment=f"before {self._learning}",
        ).find()
        self.session.call(EnterPhase("rl"))
        self.session.facts.clear()  # These facts are about SFT.
        settle()
        return found

    def _expected(self) -> Iterable[TrainBatch]:
        """Returns the shapes of batches for which the step is compiled ahead."""
        if self.compile_threads:
            return self.batching.shapes()
        # Mixed rows almost never form the largest batch.
        return [] if self.batching.kind in MIXED else [self.batching.largest()]

    def _is_wanted(self, step: int, point: StartingPoint) -> bool:
        """Says whether the weights after a step are published, and explorers will use them."""
        schedule, steps = self._schedule, self.session.settings.trainer.steps
        if step < point.oldest_version:
            return False
        first_user = schedule.first_user(step) if schedule.pull == "exact" else step + 1
        return schedule.publishes_after(step) and first_user <= steps

    def _publish(
        self, state: TrainState, step: int, end: TrainerEnd, digests: PublishedDigests
    ) -> None:
        params = self.parameters.published(state.params)
        if self.session.settings.sync.verify:
            digests.note(step, params)
        end.publish(step, params)

    def _look_after(
        self, state: TrainState, step: int, stepping: StepsInFlight, point: StartingPoint
    ) -> None:
        """Evaluates and saves if the settings ask for it; `_finish` does it for the last step."""
        settings, moment = self.session.settings, f"after step {step}"
        evaluates = (
            _is_due(step, settings.evaluation.every_steps)
            and not settings.evaluates_on_explorers
            and moment not in point.evaluated
        )
        saves = _is_due(step, settings.checkpoint.every_steps)
        saves = saves or (evaluates and settings.checkpoint.best is not None)
        if step == settings.trainer.steps or not (evaluates or saves):
            return
        stepping.settle()
        if saves:
            self.snapshots.save(state, self._schedule, waits=False)
        if evaluates:
            self._evaluate(state, moment)

    def _finish(self, state: TrainState) -> None:
        """Saves the state; after the last step it also evaluates."""
        self.session.call(EnterPhase("end"))
        self.snapshots.save(state, self._schedule, waits=True)
        if int(state.step) == self.session.settings.trainer.steps:
            self._evaluate(state, f"after {self._learning}")
            await_evaluations(self.session)
        self.session.call(Report(RunResult(digest=digest(state.params))))

    @property
    def _learning(self) -> str:
        return self.session.settings.algorithm.learning

    def _evaluate(self, state: TrainState, moment: str) -> None:
        self.evaluator.hand_in(state.params, moment, int(state.step))

    def _evaluate_or_save(self, state: TrainState, moment: str) -> None:
        """Evaluates the initial policy; if others fail meanwhile, its SFT is not lost."""
        try:
            self._evaluate(state, moment)
        except _OF_OTHERS:
            self.snapshots.save(state, self.session.settings.schedule, waits=True)
            raise


def _is_due(step: int, every_steps: int) -> bool:
    """Says whether a step is a multiple of `every_steps`; 0 for never."""
    return every_steps > 0 and step % every_steps == 0
