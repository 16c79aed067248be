"""The trainer in the simulation: the real loop, with other ends of its ports and another actor.

The loop, the reader of batches, its log, steps in flight, and the keeper of snapshots are those of
every run. The device, the disk, the network and the transfer of weights are simulated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rl_sync.checkpoints.ledger import ConsumptionRecord
from rl_sync.messages.events import VersionPublished
from rl_sync.messages.master_calls import Happened
from rl_sync.records.spans import sync_kind
from rl_sync.replay.replay_interface import ReplayTimeoutError, ReplayUnavailableError
from rl_sync.roles.trainer.batch_reader import BatchReader
from rl_sync.roles.trainer.commands import AbandonRun, StartingPoint, TrainerCommand
from rl_sync.roles.trainer.logged_batches import LoggedBatches
from rl_sync.roles.trainer.loop import TrainerLoop
from rl_sync.roles.trainer.published_digests import PublishedDigests
from rl_sync.roles.trainer.snapshot_keeper import SnapshotKeeper
from rl_sync.schedule import SyncSchedule
from rl_sync.simulation.faults.drawn_run import MASTER, REPLAY
from rl_sync.simulation.faults.invariants import (
    BrokenRuleError,
    TrainedBatch,
    first_weights,
    trained,
)
from rl_sync.simulation.faults.joint_transfer import GivingEnd, VirtualLink
from rl_sync.simulation.faults.processes import RETRY_SECS, Answerer, ArrivedCall
from rl_sync.simulation.faults.relays import FetchBlock
from rl_sync.simulation.faults.replay_process import ListGroups, SampleGroups, SaveBuffer
from rl_sync.simulation.faults.simulated_groups import columns_of, simulated
from rl_sync.simulation.faults.trainer_disk import (
    MEMORY,
    ComputedWeights,
    SimulatedFolder,
    SimulatedLog,
    SimulatedState,
)
from rl_sync.simulation.faults.virtual_process import WAIT_SECS, VirtualProcess, VirtualSession
from rl_sync.simulation.faults.weights_store import Offer, WeightsStore
from rl_sync.simulation.stand_ins import (
    LaterNumber,
    SampledItem,
    StandInTrainer,
    step_metrics,
)
from rl_sync.types import Group
from rl_sync.weights.deltas.artifact import HeldVersion

_POLL_SECS = 0.5
_SAVED_SECS = 20.0
_TABLE = "groups"


class FetchWeights(NamedTuple):
    """An explorer asks for a version, given the verified one that it has."""

    version: int
    exactly: bool
    held: HeldVersion | None


class SimulatedTrainer(VirtualProcess):
    """Trains, publishes, and saves."""

    audit_secs = 3.0
    """See `BatchReader`."""

    reader: type[BatchReader] = BatchReader
    log: type[LoggedBatches] = LoggedBatches
    folder: type[SimulatedFolder] = SimulatedFolder

    def begin(self) -> None:
        """Starts the loop."""
        run = self.world.run
        self.chance = random.Random(f"{run.seed} trainer {self.life}")
        self.store_of_life = self.store(f"life {self.life}", run.schedule.versions_kept)
        self.weights = getattr(self, "weights", first_weights(run))
        super().begin()

    def run(self) -> None:
        """Runs the loop to its end."""
        self._loop().run()
        self.world.end(self)

    def handle(self, request: ArrivedCall, answer: Answerer) -> None:
        """Answers explorers that fetch weights."""
        self.command(request.message)
        match request.message:
            case FetchWeights(version, exactly, held):
                answer(self.offer(version, exactly, held))
            case FetchBlock(key):
                answer(self.store_of_life.payload(key))

    def offer(self, version: int, exactly: bool, held: HeldVersion | None) -> Offer | None:
        """Returns what a receiver has to fetch; None if there is no such version."""
        return self.store_of_life.offer(version, exactly, held)

    def schedule(self, schedule: SyncSchedule) -> SyncSchedule:
        """Returns the schedule that groups have to fit."""
        return schedule

    def store(self, chain: str, keep: int) -> WeightsStore:
        """Makes the store of published weights."""
        return WeightsStore(chain, keep)

    def save_buffer(self) -> None:
        """Lets the replay buffer save its content."""
        self.command("save the buffer")
        try:
            self.ask(REPLAY, SaveBuffer(), secs=_SAVED_SECS)
        except TimeoutError as error:
            raise ReplayUnavailableError("the buffer is not saved") from error

    def flush(self, name: str) -> None:
        """Makes a file durable before it gets its name."""
        self.world.disk.flush(name)

    def _loop(self) -> TrainerLoop:
        session, run = VirtualSession(self), self.world.run
        log = SimulatedLog(self, self.chance)
        actor: Any = _SteppingActor(self)
        snapshots: Any = self.folder(self, "snapshot-", self.chance, self.flush)
        memory: Any = self.folder(self, MEMORY, self.chance, self.world.disk.flush)

        def source(
            point: StartingPoint, schedule: SyncSchedule, idle: Callable[[], None]
        ) -> LoggedBatches:
            actor.logged = point.logged

            def reader(on_taken: Callable[[int, list[Group]], None]) -> BatchReader:
                replay: Any = _SampledReplay(self)
                return self.reader(
                    session,
                    replay,
                    _TABLE,
                    self.schedule(schedule),
                    idle,
                    on_taken=on_taken,
                    audit_secs=self.audit_secs,
                    poll_secs=_POLL_SECS,
                )

            return self.log(session, log_port, reader, point)

        log_port: Any = log
        return _NotedLoop(
            session=session,
            trainer=actor,
            batching=actor,
            parameters=actor,
            sft=actor,
            evaluator=actor,
            end=lambda schedule: self._end(session),
            source=source,
            snapshots=SnapshotKeeper(
                session=session,
                trainer=actor,
                parameters=actor,
                disk=snapshots,
                log=log_port,
                save_buffer=self._buffer_saved,
                memory=memory if run.memory_every_steps else None,
            ),
            steps=actor,
            place=lambda lay_out: lay_out(),
            consumed=lambda counted: ConsumptionRecord(None, counted),
            digests=lambda since, exact: PublishedDigests(None, since=since, exact=exact),
        )

    def _end(self, session: VirtualSession) -> _End:
        return _JointEnd(self, session) if self.world.run.is_joint else _End(self)

    def _buffer_saved(self) -> None:
        invariants = self.world.invariants
        invariants.snapshot_begins(self.world.buffered())
        self.save_buffer()
        invariants.snapshot_ends()


class _NotedLoop(TrainerLoop):
    """Lists its commands, at each of which the process may crash."""

    def _execute(self, command: TrainerCommand) -> int | None:
        process = self.trainer.process  # type: ignore[attr-defined]
        process.command(command)
        if isinstance(command, AbandonRun):
            raise BrokenRuleError(f"no snapshot and log lead to step {command.counted}")
        return super()._execute(command)


class _Placed(NamedTuple):
    """A batch on the device."""

    groups: tuple[Group, ...]


class _SteppingActor(StandInTrainer):
    """The trainer's actor, and all else that computes: steps take time, and weights are numbers.

    Attributes:
      process: the trainer's process.
      logged: last step of the log.
    """

    def __init__(self, process: SimulatedTrainer) -> None:
        self.process, self.logged = process, 0
        self._free_secs = 0.0

    # Parameters.

    def initial(self) -> ComputedWeights:
        return ComputedWeights(first_weights(self.process.world.run), 0.0)

    kept = held = StandInTrainer.published

    def completed(self, params: ComputedWeights, base_digest: None) -> ComputedWeights:
        del base_digest
        return params

    def base_digest(self, params: ComputedWeights) -> None:
        del params

    def digest(self, params: ComputedWeights) -> str:
        self.wait(params.until_secs)
        return f"{params.value:x}"

    # The actor.

    def abstract(self) -> SimulatedState:
        return SimulatedState(0, self.initial())

    def start(self, params: ComputedWeights) -> SimulatedState:
        self.process.clock.sleep(self.process.chance.uniform(0.5, 2.0))
        return SimulatedState(0, params)

    def begin(self, state: SimulatedState) -> SimulatedState:
        self.process.weights = state.params.value
        return state

    def is_finite(self, state: SimulatedState) -> bool:
        del state
        return True

    def hand_in(self, params: ComputedWeights, moment: str, step: int) -> None:
        """Evaluates."""
        del moment, step
        self.wait(params.until_secs)
        self.process.clock.sleep(self.process.chance.uniform(0.1, 0.5))

    # Steps.

    def largest(self) -> _Placed:
        return _Placed(())

    def placed(self, groups: Sequence[Group]) -> tuple[_Placed, None]:
        return _Placed(tuple(groups)), None

    def _stepped(
        self, state: SimulatedState, batch: _Placed
    ) -> tuple[SimulatedState, Mapping[str, LaterNumber]]:
        """Dispatches a step, which begins once the one before it is computed."""
        process = self.process
        began = max(process.clock.now(), self._free_secs)
        until = self._free_secs = began + process.chance.uniform(0.2, 1.5)
        groups, step, is_told = tuple(map(simulated, batch.groups)), state.step + 1, False
        value = trained(state.params.value, groups)

        def ready() -> None:
            nonlocal is_told
            self.wait(until)
            if not is_told:
                is_told = True
                is_again = step <= self.logged
                process.world.invariants.stepped(step, TrainedBatch(groups, ()), is_again)
                process.weights = value

        metrics = step_metrics(step, [one.oldest_version for one in groups], ready)
        return SimulatedState(step, ComputedWeights(value, until)), metrics

    def wait(self, until_secs: float) -> None:
        """Waits until something is computed."""
        clock = self.process.clock
        if (left := until_secs - clock.now()) > 0:
            clock.sleep(left)


class _End:
    """The trainer's end of a transfer; see `TrainerEnd`."""

    def __init__(self, process: SimulatedTrainer) -> None:
        self._process, self._run = process, process.world.run

    def awaits(self, version: int) -> bool:
        """The next step is taken meanwhile."""
        del version
        return False

    def publish(self, version: int, params: ComputedWeights) -> None:
        """Offers a version."""
        process, run, began = self._process, self._run, self._process.clock.now()
        weights = self._computed(params)
        process.world.invariants.published(version, weights)
        process.store_of_life.add(version, weights)
        if run.transfer == "checkpoint":
            self._write(version, weights)
        process.ask(MASTER, Happened(VersionPublished(version)))
        kind = sync_kind(run.transfer)
        process.world.span(process.name, kind, began, version=version, step=version)

    def serve(self) -> None:
        """Needs no call to serve."""

    def close(self) -> None:
        """Goes on serving."""

    def _computed(self, params: ComputedWeights) -> int:
        """Waits until a version is computed, and checks that it is the same as any time before."""
        clock = self._process.clock
        clock.sleep(max(0.0, params.until_secs - clock.now()))
        return params.value

    def _write(self, version: int, weights: int) -> None:
        process, disk, name = self._process, self._process.world.disk, f"weights-{version:04d}"
        disk.write(process.name, f"partial-{name}", [weights])
        disk.flush(f"partial-{name}")
        process.command("rename the weights")
        disk.rename(f"partial-{name}", name)
        for old in disk.names("weights-")[: -self._run.schedule.versions_kept]:
            disk.delete(old)


class _JointEnd(_End):
    """The trainer's end of collective transfer: the real one."""

    def __init__(self, process: SimulatedTrainer, session: VirtualSession) -> None:
        super().__init__(process)
        names = {number: f"explorer{number}" for number in range(1, self._run.explorers + 1)}
        links: Any = {number: VirtualLink(process, name) for number, name in names.items()}
        self._real = GivingEnd(
            session,
            links,
            kind=sync_kind(self._run.transfer),
            meet=self._run.is_exact,
            timeout_secs=WAIT_SECS,
        )
        self.awaits, self.serve = self._real.awaits, self._real.serve  # type: ignore[method-assign]

    def publish(self, version: int, params: ComputedWeights) -> None:
        """Offers a version."""
        weights = self._computed(params)
        self._process.world.invariants.published(version, weights)
        given: Any = params
        self._real.publish(version, given)


class _Info(NamedTuple):
    """State of a table."""

    current_size: int


class _SampledReplay:
    """The trainer's client of the replay server; see `ReplayClient`.

    An answer that does not come in time is lost, with the groups in it.
    """

    may_restart = True

    def __init__(self, process: SimulatedTrainer) -> None:
        self._process = process

    def sample(self, table: str, count: int, *, timeout_secs: float) -> list[SampledItem]:
        del table
        found = self._asked(SampleGroups(count), timeout_secs)
        if not found:
            raise ReplayTimeoutError("no group came")
        return [SampledItem(columns_of(group)) for group in found]

    def info(self) -> dict[str, _Info]:
        return {_TABLE: _Info(len(self._asked(ListGroups(), 0.0)))}

    def _asked(self, message: Any, poll_secs: float) -> Any:
        secs = poll_secs + 2 * RETRY_SECS
        try:
            return self._process.ask(REPLAY, message, poll_secs, secs)
        except TimeoutError as error:
            raise ReplayUnavailableError("the replay server does not answer") from error
