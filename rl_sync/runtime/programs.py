"""The wiring: from a run's settings to each role's program."""

from __future__ import annotations

import dataclasses
import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

import jax

from rl_sync.actors.explorer import Explorer
from rl_sync.actors.trainer import Trainer
from rl_sync.models.sharding import Layout
from rl_sync.observe.spans import SpanKind
from rl_sync.replay.client import ReplayClient
from rl_sync.replay.interface import ReplayError
from rl_sync.replay.tables import Selector, TableSpec, queue, to_json
from rl_sync.runtime.batches import BatchReader
from rl_sync.runtime.evaluation import Evaluator
from rl_sync.runtime.explorer import ExplorerProgram
from rl_sync.runtime.master import MasterProgram
from rl_sync.runtime.parameters import Parameters
from rl_sync.runtime.publishing import (
    CheckpointPublishing,
    CollectivePublishing,
    LocalPublishing,
    Publishing,
)
from rl_sync.runtime.rendezvous import ExplorerRendezvous
from rl_sync.runtime.rpc import PeerLostError, RpcServer
from rl_sync.runtime.session import Session
from rl_sync.runtime.settings import ConfigError, RunSettings
from rl_sync.runtime.trainer import TrainerProgram
from rl_sync.runtime.warm_up import WarmUp
from rl_sync.schedule import SyncSchedule
from rl_sync.tasks.task import Task
from rl_sync.weights.checkpoint import CheckpointPuller
from rl_sync.weights.cluster import init_cluster, leave_cluster
from rl_sync.weights.collective import CollectivePuller
from rl_sync.weights.interface import Puller
from rl_sync.weights.local import LocalPublisher, LocalPuller

TABLE = "groups"
WEIGHTS_DIR = "weights"
CHECKPOINTS_DIR = "checkpoints"
_POLL_SECS = 0.1
_log = logging.getLogger(__name__)


class Addresses(NamedTuple):
    """Where the others are, each as host:port.

    Attributes:
      coordinator: where the cluster of a collective transfer forms.
    """

    master: str
    replay: str
    coordinator: str


class Place(NamedTuple):
    """Where a role is that shares its process with the others.

    Attributes:
      layout: its devices, and how arrays lie on them.
      weights: where versions are handed over; None where they go through files.
    """

    layout: Layout
    weights: LocalPublisher | None


def replay_tables(settings: RunSettings) -> list[TableSpec]:
    """The replay buffer's tables: one, from which each group is taken once.

    It has room for every batch that may be ahead of the trainer, and for groups whose lease is
    over, so that no explorer waits for room while the schedule lets it go on.
    """
    ahead = settings.schedule.batches_ahead * settings.trainer.groups_per_step
    spare = settings.explorers * settings.groups_per_lease
    table = queue(TABLE, ahead + spare)
    return [dataclasses.replace(table, sampler=cast(Selector, settings.replay.sampler))]


def run_master(settings: RunSettings, addresses: Addresses) -> None:
    """Serves as the master until it is told to close, or to terminate."""
    program = MasterProgram(settings)
    host, _, port = addresses.master.rpartition(":")
    server = RpcServer(program.methods, int(port), host)
    signal.signal(signal.SIGTERM, lambda *_: program.closed.set())
    program.closed.wait()
    server.close()


def run_trainer(settings: RunSettings, addresses: Addresses, place: Place | None = None) -> None:
    """Runs the trainer, in a process of its own or in its place of a shared one."""
    layout = place.layout if place else _join(settings, addresses, 0)
    workdir, task = Path(settings.workdir), settings.load_task()
    with Session(settings, "trainer", addresses.master) as session:
        _await_master(session)
        trainer = trainer_of(settings, task, layout)
        parameters = parameters_of(settings, task, layout)
        problems = settings.trainer.evaluation_problems
        rows = min(problems, settings.warm_up.probe_problems)
        greedy = settings.greedy_sampling(task)
        evaluator = Evaluator(session, trainer.model, task, greedy, problems, rows, layout)
        replay = ReplayClient(addresses.replay)

        def publishing(schedule: SyncSchedule) -> Publishing:
            if settings.transfer == "checkpoint":
                return CheckpointPublishing(session, schedule, workdir / WEIGHTS_DIR)
            if place is not None and place.weights is not None:
                return LocalPublishing(session, schedule, place.weights)
            return CollectivePublishing(session, schedule, parameters.travelling_like())

        def reader(schedule: SyncSchedule, idle: Callable[[], None]) -> BatchReader:
            _await_replay(session, replay)
            replay.reset(TABLE)  # A server that is not ours may hold another run's groups.
            return BatchReader(session, replay, TABLE, schedule, idle)

        TrainerProgram(
            session,
            trainer,
            settings.batching(task.row_tokens),
            parameters,
            WarmUp(session, trainer, evaluator, task),
            evaluator,
            publishing,
            reader,
            workdir / CHECKPOINTS_DIR,
        ).run()
        replay.close()
        leave_cluster()


def trainer_of(settings: RunSettings, task: Task, layout: Layout) -> Trainer:
    """The trainer actor of a run."""
    return Trainer(
        model=settings.trainer_model(task),
        algorithm=settings.algorithm,
        optimizer=settings.optimizer,
        group_size=settings.trainer.group_size,
        max_completion_tokens=task.max_completion_tokens,
        end_ids=settings.sampling(task).stop_ids,
        temperature=settings.rollout.temperature,
        steps=settings.trainer.steps,
        microbatch_rows=settings.trainer.microbatch_rows,
        logits_bytes=settings.trainer.logits_bytes,
        layout=layout,
    )


def run_explorer(
    settings: RunSettings, addresses: Addresses, number: int, place: Place | None = None
) -> None:
    """Runs one explorer, in a process of its own or in its place of a shared one."""
    layout = place.layout if place else _join(settings, addresses, number)
    workdir, task = Path(settings.workdir), settings.load_task()
    with Session(settings, f"explorer{number}", addresses.master) as session:
        _await_master(session)
        replay = ReplayClient(addresses.replay)
        explorer = Explorer(
            number,
            settings.engine(task, layout),
            task,
            settings.sampling(task),
            settings.trainer.group_size,
            settings.groups_per_lease,
            settings.seed,
            settings.rollout.budget_tokens,
        )
        collective = settings.transfer == "collective"
        rendezvous = ExplorerRendezvous(session)
        parameters = parameters_of(settings, task, layout)
        like = parameters.travelling_like()
        puller: Puller
        if place is not None and place.weights is not None:
            puller = LocalPuller(place.weights, like, number, check_digest=settings.sync.verify)
        elif collective:
            puller = CollectivePuller(like, number, rendezvous, check_digest=settings.sync.verify)
        else:
            puller = CheckpointPuller(
                workdir / WEIGHTS_DIR, like, check_digest=settings.sync.verify
            )
        _await_replay(session, replay)
        ExplorerProgram(
            session,
            number,
            task,
            explorer,
            parameters.blank(),
            parameters.receiving(puller),
            lambda: rendezvous.granted_secs,
            SpanKind.SYNC_COLLECTIVE if collective else SpanKind.SYNC_CHECKPOINT,
            replay,
            TABLE,
        ).run()
        puller.close()
        replay.close()
        leave_cluster()


def _join(settings: RunSettings, addresses: Addresses, process_id: int) -> Layout:
    """Starts JAX with the devices of the role's mesh, in the cluster of a collective transfer.

    Returns:
      The mesh, and how arrays lie on it.

    Raises:
      ConfigError: the process has fewer devices than its mesh.
    """
    role = settings.explorer if process_id else settings.trainer
    if role.mesh.shape.devices > 1:
        # A CPU is one device unless JAX is told before it starts; accelerators are as they are.
        jax.config.update("jax_num_cpu_devices", role.mesh.shape.devices)
    if settings.transfer == "collective":
        init_cluster(
            addresses.coordinator,
            1 + settings.explorers,
            process_id,
            timeout_secs=settings.launch.start_secs,
        )
    try:
        mesh = role.mesh.shape.mesh(jax.local_devices())
    except ValueError as error:
        name = "explorer" if process_id else "trainer"
        raise ConfigError(f"{name}.mesh: {error}") from error
    return Layout(mesh, settings.sharding.rules)


def parameters_of(settings: RunSettings, task: Task, layout: Layout) -> Parameters:
    """The parameters of a run's policy."""
    path, seed, dtype = settings.model.path, settings.seed, settings.explorer_dtype
    return Parameters(settings.model_config(task), path, seed, layout, dtype)


def _await_master(session: Session) -> None:
    patience = session.patience("an answer", "the master")
    while True:
        try:
            session.call("newest")
            return
        except PeerLostError:
            patience()
            time.sleep(_POLL_SECS)


def _await_replay(session: Session, replay: ReplayClient) -> None:
    """Waits until the replay server answers; raises ConfigError if it lacks the run's table."""
    patience = session.patience("an answer", "the replay server")
    with session.spans.span(SpanKind.WAIT, reason="the replay server", for_whom="replay"):
        while True:
            try:
                check_replay(session.settings, replay)
                return
            except ReplayError:
                patience()
                time.sleep(_POLL_SECS)


def check_replay(settings: RunSettings, replay: ReplayClient) -> None:
    """Checks that a replay server, which somebody may have started by hand, has the run's table.

    Raises:
      ConfigError: it has not.
      ReplayError: it does not answer.
    """
    (wanted,) = replay_tables(settings)
    found = replay.info().get(TABLE)
    if found is None or found.max_size < wanted.max_size or found.max_times_sampled != 1:
        raise ConfigError(
            f"The replay server at {replay.address} has no table for this run. Start it with"
            f" --tables '{to_json([wanted])}', or leave out --config.replay.address."
        )
