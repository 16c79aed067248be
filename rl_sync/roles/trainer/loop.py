"""The trainer's loop: executes the commands of the trainer's life.

SFT, then take a batch, train, publish, step after step; `life` decides when.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable

from rl_sync.checkpoints.ledger import ConsumptionRecord
from rl_sync.cluster.rpc import RemoteError
from rl_sync.cluster.session import RunStoppedError, Session
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.learning.learning_settings import MIXED
from rl_sync.learning.rows.batching import Batching
from rl_sync.messages.master_calls import EnterPhase, Report, moment_of
from rl_sync.messages.run_result import RunResult
from rl_sync.records.chaos_windows import SYNC
from rl_sync.replay.replay_interface import ReplayError
from rl_sync.roles.assembly.parameters import Parameters
from rl_sync.roles.evaluation.evaluator import Measure, await_evaluations
from rl_sync.roles.teaching.served_teacher import TeacherServerError
from rl_sync.roles.trainer import commands
from rl_sync.roles.trainer.actor import Trainer, TrainState
from rl_sync.roles.trainer.batch_reader import GroupSource
from rl_sync.roles.trainer.commands import (
    OthersFailedError,
    StartingPoint,
    StopAskedError,
    TrainerCommand,
    TrainStep,
)
from rl_sync.roles.trainer.compiled_steps import CompiledSteps
from rl_sync.roles.trainer.life import TrainerLife, TrainerPlan
from rl_sync.roles.trainer.published_digests import PublishedDigests
from rl_sync.roles.trainer.restoring import StateRestorer
from rl_sync.roles.trainer.rollout_recorder import RolloutRecorder
from rl_sync.roles.trainer.sft_phase import SftPhase
from rl_sync.roles.trainer.snapshot_keeper import SnapshotKeeper
from rl_sync.roles.trainer.steps_in_flight import DemonstrationsOf, PlaceBatch, StepsInFlight
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.ends import TrainerEnd
from rl_sync.types import Consumed, Params, TrainBatch
from rl_sync.weights.ends_interface import WeightsTransferError

# Failures of other roles, or of the connections to them: the trainer's own state is intact.
_OF_OTHERS = (
    TimeoutError,
    WeightsTransferError,
    ReplayError,
    RemoteError,
    TeacherServerError,
)
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
      steps: compiles the steps.
      place: see `StepsInFlight`.
      consumed: opens the record of consumed groups, given the last step that is recorded already.
      digests: opens the record of published digests; see `PublishedDigests` for its arguments.
      demonstrations: see `StepsInFlight`.
      compile_threads: number of threads that compile the step for all shapes of batches; 0 for one
        thread, which compiles only for the largest batch.
      recorder: makes the recorder of rollouts, given the last step that is recorded already; None
        if there is none.
      teachers: loads the teachers' parameters; None without a teacher.
      taught: adds a served teacher's answers to a batch; None without such a teacher.
      lend: shows the parameters to explorers of this process, before each version.
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
    steps: CompiledSteps
    place: PlaceBatch
    consumed: Callable[[int], ConsumptionRecord]
    digests: Callable[[int | None, bool], PublishedDigests]
    demonstrations: DemonstrationsOf | None = None
    compile_threads: int = 0
    recorder: Callable[[int], RolloutRecorder] | None = None
    teachers: Callable[[], tuple[Params, ...]] | None = None
    taught: Callable[[Consumed], Consumed] | None = None
    lend: Callable[[Params], None] = lambda params: None
    _life: TrainerLife = dataclasses.field(init=False)
    _restorer: StateRestorer = dataclasses.field(init=False)
    _state: TrainState = dataclasses.field(init=False)
    _batch: Consumed = dataclasses.field(init=False)
    _digests: PublishedDigests = dataclasses.field(init=False)
    _stepping: StepsInFlight | None = None
    _open: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)
    _end: TrainerEnd | None = None
    _source: GroupSource | None = None
    _failure: Exception | None = None

    def run(self) -> None:
        """Trains to the last step, or until the run is stopped; saves a snapshot either way.

        Raises:
          TimeoutError: a wait passed its deadline; a snapshot is saved before.
          PeerLostError: the master is gone.
          WeightsTransferError: a version could not be published; a snapshot is saved before.
          ReplayError: the replay server is gone; a snapshot is saved before.
          RemoteError: the master rejected a call; a snapshot is saved before.
          TeacherServerError: the teacher server is gone, or fails; a snapshot is saved before.
          RunEndedError: the trainer died before, and cannot go on in place.
        """
        settings = self.session.settings
        plan = TrainerPlan(
            settings.schedule,
            settings.trainer.steps,
            save_every_steps=settings.checkpoint.every_steps,
            memory_every_steps=settings.checkpoint.memory_every_steps,
            evaluate_every_steps=(
                0 if settings.evaluates_on_explorers else settings.evaluation.every_steps
            ),
            saves_evaluated=settings.checkpoint.best is not None,
        )
        self._restorer = StateRestorer(
            self.session, self.snapshots, self.snapshots.log, self._moment
        )
        self._prepare()
        self._life = TrainerLife(plan, self._restorer.look())
        self._perform()
        if self._failure is not None:
            raise self._failure
        if self._end is not None:
            self._end.close()

    def _prepare(self) -> None:
        """Compiles the step, beside what follows."""
        for batch in self._expected():
            if self.demonstrations is not None:
                batch = batch._replace(demonstrations=self.demonstrations(0))
            self.steps.prepare(batch)

    def _expected(self) -> Iterable[TrainBatch]:
        """Returns the shapes of batches for which the step is compiled ahead."""
        if self.compile_threads:
            return self.batching.shapes()
        # Mixed rows almost never form the largest batch.
        return [] if self.batching.kind in MIXED else [self.batching.largest()]

    def _perform(self) -> None:
        """Executes all commands, and says which of them met a stop, or the failure of others."""
        life = self._life.commands()
        following: Callable[[], TrainerCommand] = functools.partial(life.send, None)
        while True:
            try:
                command = following()
            except StopIteration:
                return
            try:
                following = functools.partial(life.send, self._execute(command))
            except RunStoppedError as error:
                if self._life.is_ending:
                    raise
                following = functools.partial(life.throw, StopAskedError(str(error)))
            except _OF_OTHERS as error:
                # A step that fails has already donated the state.
                if self._life.is_ending or isinstance(command, TrainStep):
                    raise
                if self._failure is not None:
                    raise self._failure from error
                _log.error("The trainer cannot continue, and saves its state: %s", error)
                self._failure = error
                following = functools.partial(life.throw, OthersFailedError())

    def _execute(self, command: TrainerCommand) -> int | None:
        match command:
            case commands.Initialize():
                initial = self.parameters.initial
                goes_on = self._life.found.known is not None
                state = self.sft.run(lambda: self.trainer.start(initial()), goes_on)
                return self._restored(self.trainer.begin(state))
            case commands.RestoreNewest():
                return self._restored(self._restorer.newest())
            case commands.Restore(step):
                saved = self._restorer.saved(step)
                return None if saved is None else self._restored(saved)
            case commands.AbandonRun(counted):
                raise RunEndedError(
                    "The trainer cannot go on in place: no snapshot and log of batches lead to"
                    f" step {counted}, which was trained before it died. The same command goes on"
                    " from the newest snapshot."
                )
            case commands.AnnounceBeginning(step):
                self._restorer.announce_beginning(step)
            case commands.AnnounceGoingOn(counted, step):
                self._restorer.announce_going_on(counted, step)
            case commands.OpenStreams(point):
                self._open_streams(point)
            case commands.TakeBatch(step):
                batch = self._groups.next(step)
                self._batch = batch if self.taught is None else self.taught(batch)
            case commands.LogBatch(step):
                self._groups.log(step, self._batch)
            case commands.TrainStep(step, is_counted):
                assert self._stepping is not None
                logged = self._groups.settle
                self._state = self._stepping.take(
                    self._state, step, *self._batch, logged=logged, again=is_counted
                )
            case commands.AwaitLog():
                self._groups.settle()
            case commands.AwaitReports():
                if self._stepping is not None:
                    self._stepping.settle()
            case commands.PublishVersion(version):
                self._publish(version)
            case commands.ServeWeights():
                self._ends.serve()
            case commands.SaveSnapshot(_, waits):
                self.snapshots.save(self._state, self._life.schedule, waits=waits)
            case commands.SaveInMemory():
                self.snapshots.save_in_memory(self._state, self._life.schedule)
            case commands.EvaluateStep(step):
                self.evaluator.hand_in(self._state.params, self._moment(step), step)
            case commands.GiveGroupsBack(reason):
                if self._source is not None:
                    self._source.close(reason)
            case commands.BeginEnd():
                self._open.close()
                self.session.call(EnterPhase("end"))
            case commands.EndTraining():
                self._finish()
        return None

    def _restored(self, state: TrainState) -> int:
        if self.teachers is not None:
            state = self.trainer.taught(state, self.teachers())
        self._state = state
        return int(state.step)

    def _open_streams(self, point: StartingPoint) -> None:
        self.session.call(EnterPhase("rl"))
        self.session.facts.clear()  # These facts are about SFT.
        self.session.settle()
        schedule = self._life.schedule
        consumed = self.consumed(point.counted)
        self._open.callback(consumed.close)
        since = None if point.goes_on else point.step
        self._digests = self.digests(since, schedule.pull == "exact")
        self._open.callback(self._digests.close)
        recorder = self.recorder(point.counted) if self.recorder and self.session.leads else None
        if recorder is not None:
            self._open.callback(recorder.close)
        self._stepping = StepsInFlight(
            self.session,
            self.batching,
            self.steps,
            place=self.place,
            consumed=consumed,
            demonstrations=self.demonstrations,
            recorder=recorder,
        )
        self.session.check()
        self._end = self.end(schedule)
        self._source = self.source(point, schedule, self._end.serve)

    def _finish(self) -> None:
        """Reports the digest; after the last step evaluations are waited for."""
        if self._life.step == self.session.settings.trainer.steps:
            await_evaluations(self.session)
        self.session.call(Report(RunResult(digest=self.parameters.digest(self._state.params))))
        self.snapshots.forget_memory()

    @property
    def _groups(self) -> GroupSource:
        assert self._source is not None
        return self._source

    @property
    def _ends(self) -> TrainerEnd:
        assert self._end is not None
        return self._end

    def _publish(self, version: int) -> None:
        if self._stepping is not None and self._ends.awaits(version):
            self._stepping.settle()
        self.session.spans.enter(SYNC)
        params = self.parameters.published(self._state.params)
        if self.session.settings.sync.verify:
            self._digests.note(version, params)
        self.lend(self._state.params)
        self._ends.publish(version, params)

    def _moment(self, step: int) -> str:
        """Returns the name of the evaluation after a step."""
        settings = self.session.settings
        if step in (0, settings.trainer.steps):
            when = "after" if step else "before"
            return f"{when} {settings.algorithm.learning}"
        return moment_of(step)
