"""The programs of the trainer and of explorers, built from a run's settings."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rl_sync.checkpoints.batch_log import BatchLog
from rl_sync.checkpoints.ledger import ConsumptionRecord
from rl_sync.checkpoints.memory_tier import memory_folder
from rl_sync.checkpoints.snapshot_folder import SnapshotFolder
from rl_sync.checkpoints.snapshots import latest_snapshot
from rl_sync.cluster.process_resources import Addresses, Resources
from rl_sync.cluster.rpc import PeerLostError, RpcClient
from rl_sync.cluster.secret import secret_of
from rl_sync.cluster.session import Session
from rl_sync.cluster.team import Team
from rl_sync.learning.learning_settings import PAIR
from rl_sync.learning.objective import LossConfig
from rl_sync.messages.weight_calls import AskNewest
from rl_sync.models import lora
from rl_sync.models.sharding import Layout
from rl_sync.records.rollouts.recorded_images import ImageFiles
from rl_sync.records.rollouts.rollout_parts import RolloutParts
from rl_sync.records.spans import SpanKind, sync_kind
from rl_sync.replay.client import ReplayClient
from rl_sync.replay.replay_interface import ReplayError
from rl_sync.role_names import TRAINER, explorer_name
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.checkpoint_frame import frame_of
from rl_sync.roles.assembly.compile_ahead import Ahead, ahead_of
from rl_sync.roles.assembly.engines import (
    engine_of_rollouts,
    evaluation_engine,
    examination_engine,
    rollout_engine,
)
from rl_sync.roles.assembly.parameters import Parameters, parameters_of
from rl_sync.roles.assembly.program_list import (
    SFT,
    TRAINING,
    Listed,
    explorer_programs,
    trainer_programs,
)
from rl_sync.roles.assembly.replay_tables import TABLE, check_replay
from rl_sync.roles.evaluation.evaluator import Evaluator, Measure
from rl_sync.roles.evaluation.pair_evaluation import PairEvaluator
from rl_sync.roles.evaluation.pinned_evaluations import PinnedEvaluations
from rl_sync.roles.explorer.actor import Explorer
from rl_sync.roles.explorer.episode_wiring import playing
from rl_sync.roles.explorer.group_delivery import GroupDelivery
from rl_sync.roles.explorer.loop import ExplorerLoop
from rl_sync.roles.teaching.served_teacher import TeacherClient
from rl_sync.roles.teaching.teacher_models import load_teachers, teacher_models
from rl_sync.roles.token_recorder import TokenRecorder
from rl_sync.roles.trainer.actor import Trainer
from rl_sync.roles.trainer.batch_reader import BatchReader, GroupSource
from rl_sync.roles.trainer.batch_shares import BatchPlacer
from rl_sync.roles.trainer.commands import StartingPoint
from rl_sync.roles.trainer.compiled_steps import CompiledSteps
from rl_sync.roles.trainer.data_reader import DataReader, drawing
from rl_sync.roles.trainer.experience_pipeline import pipeline_of
from rl_sync.roles.trainer.logged_batches import LoggedBatches
from rl_sync.roles.trainer.loop import TrainerLoop
from rl_sync.roles.trainer.published_digests import PublishedDigests
from rl_sync.roles.trainer.reward_trainer import RewardTrainer
from rl_sync.roles.trainer.rollout_recorder import RolloutRecorder
from rl_sync.roles.trainer.rollout_writer import RolloutWriter
from rl_sync.roles.trainer.sft_phase import SftPhase
from rl_sync.roles.trainer.snapshot_keeper import SnapshotKeeper
from rl_sync.roles.trainer.steps_in_flight import DemonstrationsOf
from rl_sync.rollout.engine_interface import RolloutEngine
from rl_sync.rollout.episodes.episode_engine import EpisodeEngine
from rl_sync.rollout.stats import Stats
from rl_sync.schedule import SyncSchedule
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.demonstrations import draw
from rl_sync.tasks.task import Task
from rl_sync.transfers.decision import decide_transfer, decided_transfer
from rl_sync.transfers.ends import EndSite, NoTransfer, TrainerEnd, ends_of
from rl_sync.transfers.local import LocalPublisher
from rl_sync.types import Demonstrations, Group, Params
from rl_sync.weights.cluster import host_leaves, leave_cluster
from rl_sync.workdir import Workdir

_POLL_SECS = 0.1
_HOST_POLL_SECS = 1.0
_SCORED_ROWS = 64
_HAND_OVER_SECS = 5.0
"""Time that an explorer has to hand over its work; most grace periods are longer."""
_log = logging.getLogger(__name__)


class Ports(NamedTuple):
    """Kinds of what a role takes from outside; tests give it others, which are in memory.

    Attributes:
      master: kind of a client of the master.
      replay: kind of a client of the replay server.
      disk: kind of a folder of the trainer's snapshots.
    """

    master: type[RpcClient] = RpcClient
    replay: type[ReplayClient] = ReplayClient
    disk: type[SnapshotFolder] = SnapshotFolder

    def session(
        self, settings: RunSettings, role: str, addresses: Addresses, team: Team
    ) -> Session:
        """Begins the session of a role."""
        master = self.master(addresses.master, "master", secret_of(settings.workdir))
        return Session(settings, role, master, team)


REAL = Ports()
"""Clients that reach other processes by their addresses, and folders on the disk."""


def _lender(parameters: Parameters, resources: Resources) -> Callable[[Params], None]:
    """Returns what shows explorers of this process the base of adapters."""
    shared = resources.weights
    if parameters.model.lora is None or not isinstance(shared, LocalPublisher):
        return lambda params: None
    return lambda params: shared.lend(lora.split(params)[1])


def _lent(resources: Resources) -> Callable[[], Params] | None:
    shared = resources.weights
    return shared.lent if isinstance(shared, LocalPublisher) else None


def run_trainer(
    settings: RunSettings, addresses: Addresses, resources: Resources, ports: Ports = REAL
) -> None:
    """Runs the trainer, or one of its processes."""
    layout, team = resources.layout, resources.team
    workdir, task = Workdir(settings.workdir), wiring.load_task(settings)
    with ports.session(settings, TRAINER, addresses, team) as session:
        _await_master(session)
        transfer = decide_transfer(session, addresses.master)
        trainer = trainer_of(settings, task, layout)
        parameters = parameters_of(settings, task, layout)
        ahead = ahead_of(settings, TRAINER)
        ahead.begin(lambda: _before_training(settings, task, trainer))
        tokens = _token_recorder(session, layout)
        evaluator = _evaluator(session, trainer, task, layout, ahead, tokens)
        replay = _replay_client(settings, addresses, ports)

        site = _site(session, resources, task, master=addresses.master, transfer=transfer)

        def end(schedule: SyncSchedule) -> TrainerEnd:
            if not settings.explorers:
                return NoTransfer()
            ends = ends_of(transfer, settings.hands_over)
            return ends.trainer(site, schedule)

        pipeline = pipeline_of(settings.experience.pipeline, task)

        def source(
            point: StartingPoint, schedule: SyncSchedule, idle: Callable[[], None]
        ) -> GroupSource:
            if not settings.explorers:
                return DataReader(session, drawing(settings.algorithm, task))
            _await_replay(session, replay)
            if not point.goes_on:
                # A server that this run did not start may hold another run's groups.
                session.agree("reset", lambda: replay.reset(TABLE))

            def reader(on_taken: Callable[[int, list[Group]], None]) -> BatchReader:
                return BatchReader(
                    session,
                    replay,
                    table=TABLE,
                    schedule=schedule,
                    idle=idle,
                    pipeline=pipeline,
                    on_taken=on_taken,
                    filter_weights=wiring.filter_weights(settings, task),
                )

            return LoggedBatches(session, log, reader, point)

        log = BatchLog(workdir.batches) if session.leads and settings.explorers else None
        served = None
        if settings.teacher.address is not None:
            served = TeacherClient(session, task)
        sft = SftPhase(
            session=session,
            trainer=trainer,
            evaluator=evaluator,
            task=task,
            snapshots=SnapshotFolder(workdir.sft_snapshots, resources.processes, session.agree),
            before_first=ahead.settle,
        )
        TrainerLoop(
            session=session,
            trainer=trainer,
            batching=wiring.batching_of(settings, task),
            parameters=parameters,
            sft=sft,
            evaluator=evaluator,
            end=end,
            source=source,
            snapshots=SnapshotKeeper(
                session=session,
                trainer=trainer,
                parameters=parameters,
                disk=ports.disk(workdir.snapshots, resources.processes, session.agree),
                log=log,
                save_buffer=replay.checkpoint if replay.may_restart else None,
                on_saved=sft.forget,
                memory=_memory(session, workdir, resources.processes),
            ),
            steps=CompiledSteps(session, trainer, trainer.abstract(), ahead.threads or 1),
            place=BatchPlacer(session, trainer, resources.processes).place,
            consumed=lambda counted: ConsumptionRecord(workdir if session.leads else None, counted),
            digests=lambda since, exact: PublishedDigests(
                workdir.published if session.leads else None, since=since, exact=exact
            ),
            demonstrations=demonstrations_of(settings, task),
            lend=_lender(parameters, resources),
            compile_threads=ahead.threads,
            recorder=_recorder(session, task),
            teachers=(lambda: load_teachers(settings, task, layout)) if trainer.teachers else None,
            taught=None if served is None else served.taught,
        ).run()
        if served is not None:
            served.close()
        tokens.end(Stats())
        ahead.close()
        replay.close()
        team.close()
        leave_cluster()


def _memory(session: Session, workdir: Workdir, processes: Sequence[int]) -> SnapshotFolder | None:
    """Returns the folder of snapshots in memory, the same in all of the trainer's processes."""
    checkpoint = session.settings.checkpoint
    if not checkpoint.memory_every_steps:
        return None
    path = session.agree(
        "the folder in memory", lambda: str(memory_folder(workdir, checkpoint.memory_directory))
    )
    return SnapshotFolder(Path(path), processes, session.agree)


def trainer_of(settings: RunSettings, task: Task, layout: Layout) -> Trainer:
    """Returns the trainer actor of a run."""
    kind = RewardTrainer if settings.algorithm.scores else Trainer
    return kind(
        model=wiring.trainer_model(settings, task),
        loss=LossConfig(
            settings.algorithm,
            group_size=settings.trainer.group_size,
            max_completion_tokens=task.max_drawn_tokens,
            end_ids=wiring.sampling(settings, task).stop_ids,
            microbatch_rows=settings.trainer.microbatch_rows,
            outcome_weights=wiring.outcome_weights(settings, task),
            part_weights=tuple(part.weight for part in wiring.reward_parts(settings, task)),
        ),
        optimizer=dataclasses.replace(
            settings.optimizer,
            tower_share=settings.optimizer.tower_share * settings.model.trains_tower,
        ),
        # No rollout temperature applies to the task's own data.
        temperature=settings.rollout.temperature if settings.algorithm.generates else 1.0,
        repetition_penalty=(
            settings.rollout.repetition_penalty if settings.algorithm.generates else 1.0
        ),
        steps=settings.trainer.steps,
        sft=settings.sft,
        logits_bytes=settings.trainer.logits_bytes,
        layout=layout,
        critic=settings.critic if settings.algorithm.needs_values else None,
        offload_reference=settings.trainer.offload_reference,
        offload_optimizer=settings.trainer.offload_optimizer,
        kept_versions=wiring.kept_versions(settings),
        trains_tower=settings.model.trains_tower,
        teachers=teacher_models(settings, task),
        offload_teachers=settings.teacher.offload,
        has_served_teacher=settings.teacher.address is not None,
    )


def _before_training(settings: RunSettings, task: Task, trainer: Trainer) -> list[Listed]:
    """Lists the trainer's programs without its steps, which the trainer compiles by itself."""
    resumes = latest_snapshot(Workdir(settings.workdir).snapshots) is not None
    left_out = {TRAINING, SFT} if resumes else {TRAINING}
    programs = trainer_programs(settings, task, trainer)
    return [program for program in programs if program.purpose not in left_out]


def _evaluator(
    session: Session,
    trainer: Trainer,
    task: Task,
    layout: Layout,
    ahead: Ahead,
    tokens: TokenRecorder,
) -> Measure:
    settings = session.settings
    if isinstance(trainer, RewardTrainer):
        problems, shards = settings.evaluation.problems, layout.batch_shards
        rows = min(PAIR * problems, math.ceil(_SCORED_ROWS / shards) * shards)
        return PairEvaluator(session, trainer, task, pairs=problems, rows=rows)

    def engine() -> RolloutEngine | EpisodeEngine:
        made = evaluation_engine(settings, task, trainer.model, layout, ahead.settle)
        return playing(settings, task, made, session.agree, process=TRAINER)

    return Evaluator(
        session=session,
        examination=wiring.examination(settings, task),
        greedy=wiring.greedy_sampling(settings, task),
        engine=engine,
        tokens=tokens,
    )


def _token_recorder(session: Session, layout: Layout) -> TokenRecorder:
    path = Workdir(session.settings.workdir).tokens_of(session.role) if session.leads else None
    return TokenRecorder(path, layout)


def demonstrations_of(settings: RunSettings, task: Task) -> DemonstrationsOf | None:
    """Returns a function from a trainer step to its demonstrations, or None if there are none."""
    rows, seed = settings.algorithm.demonstration_rows, settings.seed
    if not rows:
        return None
    batching = dataclasses.replace(
        wiring.batching_of(settings, task), kind="padded", row_tokens=task.row_tokens
    )

    def demonstrations(step: int) -> Demonstrations:
        # One word more than in SFT's seeds, so that step t does not draw the t-th batch of SFT.
        drawn = draw(task, rows, [seed, step, rows])
        return drawn if drawn.images is None else batching.demonstrations(drawn)

    return demonstrations


def _recorder(session: Session, task: Task) -> Callable[[int], RolloutRecorder] | None:
    """Returns a function from the run's first step to a recorder of rollouts, or None for none."""
    settings = session.settings
    if not (settings.observe.rollouts and settings.explorers):
        return None
    return lambda start: RolloutRecorder(
        settings.observe,
        parts=RolloutParts(settings.workdir, start, most_bytes=settings.observe.most_bytes_of_each),
        scribe=RolloutWriter(
            task,
            None
            if task.processor is None
            else ImageFiles(settings.workdir, settings.observe.image_bytes),
        ),
    )


def run_explorer(
    settings: RunSettings,
    addresses: Addresses,
    number: int,
    resources: Resources,
    ports: Ports = REAL,
) -> None:
    """Runs one explorer, or one of its processes."""
    layout, team, task = resources.layout, resources.team, wiring.load_task(settings)
    with ports.session(settings, explorer_name(number), addresses, team) as session:
        if settings.rollout.progress_tokens:
            _hand_over_when_asked(session)
        _await_master(session)
        replay = _replay_client(settings, addresses, ports)
        parameters = parameters_of(settings, task, layout)
        ahead = ahead_of(settings, explorer_name(number))
        engine = engine_of_rollouts(
            settings,
            task,
            layout,
            number,
            before_first=ahead.settle,
            tell=_log.warning,
            check=session.check,
        )
        ahead.begin(lambda: explorer_programs(settings, task, layout, engine, parameters))
        explorer = Explorer(
            number=number,
            engine=playing(
                settings,
                task,
                engine,
                session.agree,
                process=explorer_name(number),
                opponents=lambda: rollout_engine(settings, task, layout),
                check=session.check,
            ),
            task=task,
            sampling=wiring.sampling(settings, task),
            group_size=settings.trainer.group_size,
            groups=settings.groups_at_once,
            seed=settings.seed,
            budget_tokens=settings.rollout.budget_tokens,
            in_parts=wiring.delivers_in_parts(settings, task),
            streams=settings.rollout.streaming,
            with_baselines=settings.algorithm.needs_baselines,
            records=wiring.token_records(settings, task),
            sends_features=wiring.sends_features(settings, task),
        )
        transfer = decided_transfer(session)
        site = _site(session, resources, task, master=addresses.master, transfer=transfer)
        end = ends_of(transfer, settings.hands_over).explorer(site)
        _await_replay(session, replay)
        ExplorerLoop(
            session=session,
            number=number,
            explorer=explorer,
            blank=parameters.blank,
            puller=parameters.receiving(end.puller, _lent(resources)),
            began_secs=end.began_secs,
            at_hand=end.at_hand,
            sync_kind=site.kind,
            tokens=_token_recorder(session, layout),
            evaluations=PinnedEvaluations(
                wiring.examination(settings, task),
                lambda: playing(
                    settings,
                    task,
                    examination_engine(settings, task, layout, ahead.settle),
                    session.agree,
                    process=explorer_name(number),
                    check=session.check,
                ),
                session.spans.now,
            ),
            delivery=GroupDelivery(
                session=session,
                task=task,
                explorer=explorer,
                replay=replay,
                table=TABLE,
                beside=wiring.delivers_beside(settings),
            ),
        ).run()
        explorer.close()
        ahead.close()
        end.puller.close()
        replay.close()
        _await_host(session)
        team.close()
        leave_cluster()


def _hand_over_when_asked(session: Session) -> None:
    """Lets an explorer hand over its work at SIGTERM; if that takes long, the signal ends it."""

    def end() -> None:
        time.sleep(_HAND_OVER_SECS)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def leave(*_: object) -> None:
        session.leave()
        threading.Thread(target=end, name="hand over", daemon=True).start()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, leave)


def _await_host(session: Session) -> None:
    """Waits until the trainer leaves the cluster, however long its last evaluation takes."""

    def is_over() -> bool:
        return host_leaves(_HOST_POLL_SECS) or not session.lasts

    while not session.agree("the cluster's end", is_over):
        pass


def _site(
    session: Session, resources: Resources, task: Task, *, master: str, transfer: str
) -> EndSite:
    """Returns the `EndSite` of a program, which its end of the weight transfer needs."""

    def abstract_params_on(layout: Layout) -> Params:
        return parameters_of(session.settings, task, layout).abstract_published()

    def frame() -> dict[str, bytes]:
        settings = session.settings
        return frame_of(settings, task, wiring.model_config(settings, task))

    return EndSite(session, sync_kind(transfer), resources, master, abstract_params_on, frame)


def _await_master(session: Session) -> None:
    deadline = session.deadline("an answer", "the master")

    def wait() -> None:
        while True:
            try:
                session.call(AskNewest())
                return
            except PeerLostError:
                deadline()
                time.sleep(_POLL_SECS)

    session.agree("the master", wait)


def _replay_client(settings: RunSettings, addresses: Addresses, ports: Ports) -> ReplayClient:
    """Makes a client; the launcher restarts a server that it has started, but not the user's."""
    may_restart = settings.explorers > 0 and settings.replay.address is None
    return ports.replay(addresses.replay, may_restart=may_restart)


def _await_replay(session: Session, replay: ReplayClient) -> None:
    """Waits until the replay server answers; raises ConfigError if it lacks the run's table."""
    deadline = session.deadline("an answer", "the replay server")

    def wait() -> None:
        while True:
            try:
                check_replay(session.settings, replay)
                return
            except ReplayError:
                deadline()
                time.sleep(_POLL_SECS)

    with session.spans.span(SpanKind.WAIT, reason="the replay server", for_whom="replay"):
        session.agree("the replay server", wait)
