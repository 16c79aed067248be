"""The trainer in the simulation: executes the commands of the trainer's control."""

from __future__ import annotations

import collections
import functools
import random
from typing import Any, NamedTuple

from rl_sync.records.spans import SpanKind, sync_kind
from rl_sync.roles.master.events import TOO_STALE, BatchTrained, GroupsRefused, VersionPublished
from rl_sync.roles.trainer import control
from rl_sync.roles.trainer.control import TrainerControl, TrainerPlan, transition
from rl_sync.schedule import SyncSchedule
from rl_sync.simulation.faults.drawn_run import MASTER, REPLAY
from rl_sync.simulation.faults.invariants import (
    SimulatedGroup,
    TrainedBatch,
    first_weights,
    trained,
)
from rl_sync.simulation.faults.master_process import (
    ClaimGroups,
    GoOnAfter,
    HeldGroups,
    KnownSteps,
    SnapshotTaken,
    StepDone,
)
from rl_sync.simulation.faults.processes import Answerer, ArrivedCall, SimulatedProcess
from rl_sync.simulation.faults.replay_process import ListGroups, SampleGroups, SaveBuffer
from rl_sync.simulation.faults.weights_store import Offer, WeightsStore
from rl_sync.weights.deltas.artifact import HeldVersion

WAIT_SECS = 300.0
_POLL_SECS = 0.5
_COMPARE_SECS = 3.0
"""Time without groups after which the trainer compares what is in the buffer with the ledger."""


class FetchWeights(NamedTuple):
    """An explorer asks for a version, given the verified one that it has."""

    version: int
    exactly: bool
    held: HeldVersion | None


class Snapshot(NamedTuple):
    """A snapshot on the disk.

    Attributes:
      weights: weights after its step.
      versions: published versions that explorers may still ask for.
    """

    weights: int
    versions: dict[int, int]


class SimulatedTrainer(SimulatedProcess):
    """Trains, publishes, and saves."""

    def begin(self) -> None:
        """Looks at what an earlier life has left."""
        run = self.world.run
        plan = TrainerPlan(
            run.schedule,
            run.steps,
            save_every_steps=run.save_every_steps,
            keep=run.keep,
        )
        self._chance = random.Random(f"{run.seed} trainer {self.life}")
        self._control = TrainerControl(plan)
        self._weights = first_weights(run)
        self._versions: dict[int, int] = {}
        self._store = self.store(f"life {self.life}", run.schedule.versions_kept)
        self._aside: list[SimulatedGroup] = []
        self._uses = collections.Counter[int]()
        self._batch: TrainedBatch | None = None
        disk = self.world.disk
        snapshots = tuple(
            int(name.split("-")[1]) for name in disk.names("snapshot-") if disk.read(name)
        )
        logged = max(snapshots, default=0)
        while disk.read(_log_name(logged + 1)):
            logged += 1
        self._report(control.Begun(snapshots, logged))

    def handle(self, request: ArrivedCall, answer: Answerer) -> None:
        """Answers explorers that fetch weights."""
        self.command(request.message)
        match request.message:
            case FetchWeights(version, exactly, held):
                answer(self.offer(version, exactly, held))

    def offer(self, version: int, exactly: bool, held: HeldVersion | None) -> Offer | None:
        """Returns what a receiver has to fetch; None if there is no such version."""
        return self._store.offer(version, exactly, held)

    @property
    def schedule(self) -> SyncSchedule:
        """The schedule that groups have to fit."""
        return self.world.run.schedule

    def store(self, chain: str, keep: int) -> WeightsStore:
        """Makes the store of published weights."""
        return WeightsStore(chain, keep)

    @property
    def weights(self) -> int:
        """Weights after the last step."""
        return self._weights

    def _report(self, event: control.TrainerEvent) -> None:
        self._control, commands = transition(self._control, event)
        for command in commands:
            self.command(command)
            self._execute(command)

    def _done(self, event: control.TrainerEvent, secs: float = 0.0) -> None:
        """Reports the end of a command after a time."""
        self.after(secs, functools.partial(self._report, event))

    def _takes(self, least: float, most: float) -> float:
        return self._chance.uniform(least, most)

    def _execute(self, command: control.TrainerCommand) -> None:
        match command:
            case control.Restore(step):
                self._restore(step)
            case control.Resume(logged):
                self.call(REPLAY, ListGroups(), functools.partial(self._go_on, logged))
            case control.Replay(step):
                self._batch = self.world.disk.read(_log_name(step))[0]
                self._train(step, is_again=True)
            case control.TakeBatch(step):
                self._since = self.world.queue.now_secs
                until = self._since + WAIT_SECS
                self.world.invariants.waits(self.name, f"batch {step}", WAIT_SECS)
                self._compared_secs = self._since
                self._turn(step, until)
            case control.LogBatch(step):
                self.world.disk.write(self.name, _log_name(step), [self._batch])
                self.after(self._takes(0.01, 0.1), functools.partial(self._flush_log, step))
            case control.TrainStep(step):
                self._train(step, is_again=False)
            case control.ReportStep(step):
                self._report_step(step)
            case control.PublishVersion(version):
                self._publish(version)
            case control.SaveSnapshot(step, versions):
                self.world.invariants.snapshot_begins(self.world.buffered())
                self.save_buffer(functools.partial(self._save, step, versions))
            case control.DropLog(step):
                self._drop(step)
            case control.EvaluateStep():
                self._done(control.EvaluationHandedIn(), self._takes(0.1, 0.5))
            case control.EndTraining():
                self.world.end(self)

    # Starting.

    def _restore(self, step: int) -> None:
        versions: tuple[int, ...] = ()
        if step:
            snapshot: Snapshot = self.world.disk.read(_snapshot_name(step))[0]
            self._weights, self._versions = snapshot.weights, dict(snapshot.versions)
            versions = tuple(sorted(snapshot.versions))
        self._done(control.Restored(versions), self._takes(0.5, 2.0))

    def _go_on(self, logged: int, held: frozenset[int]) -> None:
        """Tells the master what there is still, and learns what was reported."""
        start = self._control.step
        batches = [self.world.disk.read(_log_name(at))[0] for at in range(start + 1, logged + 1)]
        own = {group.lease_id for batch in batches for group in batch.groups}
        self.call(MASTER, GoOnAfter(held | own), functools.partial(self._know, start, batches))

    def _know(self, start: int, batches: list[TrainedBatch], known: KnownSteps) -> None:
        self._uses = collections.Counter(known.uses)
        for step, batch in enumerate(batches, start + 1):
            if step > known.reported:
                self._uses.update(group.lease_id for group in batch.groups)
        self._report(control.PositionKnown(known.reported))

    # Batches.

    def _turn(self, step: int, until: float) -> None:
        """Refuses groups that are too stale, and samples those that are missing."""
        run, schedule = self.world.run, self.schedule
        if self.world.queue.now_secs > until:
            self.give_up("has waited too long for a batch")
        again = functools.partial(self._turn, step, until)
        late = [one for one in self._aside if not schedule.accepts(step, one.oldest_version)]
        if late and not run.is_exact:
            self._aside = [one for one in self._aside if one not in late]
            refused = tuple(dict.fromkeys(one.lease_id for one in late))
            self.call(MASTER, GroupsRefused(refused, TOO_STALE), lambda _: again())
            return
        fitting = self._fitting(step)
        if len(fitting) == run.groups_per_step:
            self._consume(step, fitting)
            return
        missing = run.groups_per_step - len(fitting)
        taken = functools.partial(self._take, again)
        self.call(REPLAY, SampleGroups(missing), taken, poll_secs=_POLL_SECS)

    def _fitting(self, step: int) -> list[SimulatedGroup]:
        """Returns the groups at hand that a step may consume, in the batch's order."""
        run, needed = self.world.run, self.world.run.groups_per_step
        distinct = [*{group.lease_id: group for group in self._aside}.values()]
        if not run.is_exact:
            return distinct[:needed]
        ordinals = range((step - 1) * needed, step * needed)
        return sorted(
            (group for group in distinct if group.ordinal in ordinals), key=lambda one: one.ordinal
        )

    def _take(self, again: Any, groups: list[SimulatedGroup]) -> None:
        now = self.world.queue.now_secs
        if groups:
            lease_ids = tuple(group.lease_id for group in groups)
            self.call(MASTER, ClaimGroups(lease_ids), functools.partial(self._add, again, groups))
        elif now - self._compared_secs > _COMPARE_SECS:
            self._compared_secs = now
            self.call(REPLAY, ListGroups(), functools.partial(self.compare, again))
        else:
            again()

    def compare(self, again: Any, held: frozenset[int]) -> None:
        """Tells the master which groups there are, so that the others are leased again."""
        own = {group.lease_id for group in self._aside}
        self.call(MASTER, HeldGroups(held | own), lambda _: again())

    def _add(self, again: Any, groups: list[SimulatedGroup], over: list[int]) -> None:
        self._aside += [group for group in groups if group.lease_id not in over]
        again()

    def _consume(self, step: int, groups: list[SimulatedGroup]) -> None:
        run = self.world.run
        self.world.span(self.name, SpanKind.WAIT, self._since, reason="experiences", step=step)
        self._uses.update(group.lease_id for group in groups)
        kept = tuple(
            group.lease_id
            for group in groups
            if self._uses[group.lease_id] < run.times_sampled
            and self.schedule.accepts(step + 1, group.oldest_version)
        )
        over = {group.lease_id for group in groups} - {*kept}
        taken = {id(group) for group in groups}  # Other draws of the same groups are kept.
        self._aside = [
            one for one in self._aside if id(one) not in taken and one.lease_id not in over
        ]
        self._batch = TrainedBatch(tuple(groups), kept)
        self._done(control.BatchTaken())

    def _flush_log(self, step: int) -> None:
        self.command("flush the log")
        self.world.disk.flush(_log_name(step))
        self._report(control.BatchLogged())

    # Steps.

    def _train(self, step: int, is_again: bool) -> None:
        batch, began = self._batch, self.world.queue.now_secs
        assert batch is not None

        def end() -> None:
            self.world.invariants.stepped(step, batch, is_again)
            self.world.span(
                self.name,
                SpanKind.TRAIN,
                began,
                step=step,
                leases=[group.lease_id for group in batch.groups],
                versions=sorted({group.oldest_version for group in batch.groups}),
                tokens=sum(group.tokens for group in batch.groups),
                dropped=[],
            )
            self._weights = trained(self._weights, batch.groups)
            self._versions[step] = self._weights
            self._report(control.StepTrained())

        self.after(self._takes(0.2, 1.5), end)

    def _report_step(self, step: int) -> None:
        batch = self._batch
        assert batch is not None
        event = BatchTrained(step, tuple(one.lease_id for one in batch.groups), (), batch.kept)
        tokens = sum(group.tokens for group in batch.groups)
        self.call(MASTER, StepDone(event, tokens), lambda _: self._report(control.StepReported()))

    def _publish(self, version: int) -> None:
        weights = self._versions.setdefault(version, self._weights)
        self.world.invariants.published(version, weights)
        self._store.add(version, weights)
        if self.world.run.transfer == "checkpoint":
            name = f"weights-{version:04d}"
            self.world.disk.write(self.name, f"partial-{name}", [weights])
            self.world.disk.flush(f"partial-{name}")
            self.command("rename the weights")
            self.world.disk.rename(f"partial-{name}", name)
            for old in self.world.disk.names("weights-")[: -self.world.run.schedule.versions_kept]:
                self.world.disk.delete(old)
        began, kind = self.world.queue.now_secs, sync_kind(self.world.run.transfer)

        def announced(_: object) -> None:
            self.world.span(self.name, kind, began, version=version, step=version)
            self._report(control.VersionAnnounced())

        self.call(MASTER, VersionPublished(version), announced)

    # Snapshots.

    def save_buffer(self, then: Any) -> None:
        """Lets the replay buffer save its content."""
        self.call(REPLAY, SaveBuffer(), lambda _: then())

    def _save(self, step: int, versions: tuple[int, ...]) -> None:
        name, disk = _snapshot_name(step), self.world.disk
        snapshot = Snapshot(self._weights, {one: self._versions[one] for one in versions})
        disk.write(self.name, f"partial-{name}", [snapshot])

        began = self.world.queue.now_secs

        def finish() -> None:
            self.world.span(self.name, SpanKind.SNAPSHOT, began, step=step)
            self.flush(f"partial-{name}")
            self.command("rename the snapshot")
            disk.rename(f"partial-{name}", name)
            self.world.invariants.snapshot_ends()
            self.call(MASTER, SnapshotTaken(step), lambda _: self._report(control.SnapshotKept()))

        self.after(self._takes(0.1, 0.5), finish)

    def flush(self, name: str) -> None:
        """Makes a file durable before it gets its name."""
        self.world.disk.flush(name)

    def _drop(self, step: int) -> None:
        disk = self.world.disk
        for name in disk.names("log-"):
            if int(name.split("-")[1]) <= step:
                disk.delete(name)
        for name in disk.names("snapshot-"):
            if int(name.split("-")[1]) < step:
                disk.delete(name)


def _log_name(step: int) -> str:
    return f"log-{step:04d}"


def _snapshot_name(step: int) -> str:
    return f"snapshot-{step:04d}"
