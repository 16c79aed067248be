"""The trainer in the simulation: executes the commands of the trainer's life.

As in a real trainer, a step is computed, its batch written to the log, the step before it reported
and a snapshot written, all at the same time.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rl_sync.messages.events import TOO_STALE, BatchTrained, GroupsRefused, VersionPublished
from rl_sync.records.spans import SpanKind, sync_kind
from rl_sync.roles.trainer import commands
from rl_sync.roles.trainer.life import KnownRun, LeftBehind, TrainerLife, TrainerPlan
from rl_sync.roles.trainer.origins import first_logged, still_needed
from rl_sync.schedule import SyncSchedule
from rl_sync.simulation.faults.disk import DiskFullError
from rl_sync.simulation.faults.drawn_run import MASTER, REPLAY
from rl_sync.simulation.faults.invariants import (
    BrokenRuleError,
    SimulatedGroup,
    TrainedBatch,
    first_weights,
    trained,
)
from rl_sync.simulation.faults.joint_transfer import GivingSide
from rl_sync.simulation.faults.master_process import (
    LOST,
    AskCounted,
    BeginRun,
    ClaimGroups,
    HeldGroups,
    ListBuffered,
    SnapshotTaken,
    StepDone,
)
from rl_sync.simulation.faults.processes import Answerer, ArrivedCall, SimulatedProcess
from rl_sync.simulation.faults.relays import FetchBlock
from rl_sync.simulation.faults.replay_process import ListGroups, SampleGroups, SaveBuffer
from rl_sync.simulation.faults.weights_store import Offer, WeightsStore
from rl_sync.weights.deltas.artifact import HeldVersion

WAIT_SECS = 300.0
MEMORY = "memory-"
"""First letters of the names of snapshots in memory, which an outage deletes."""

_POLL_SECS = 0.5
_DRAINED_AT_ONCE = 8
_COMPARE_SECS = 3.0
"""Time without groups after which the trainer compares what is in the buffer with the ledger."""


class FetchWeights(NamedTuple):
    """An explorer asks for a version, given the verified one that it has."""

    version: int
    exactly: bool
    held: HeldVersion | None


class LoggedStep(NamedTuple):
    """A step in the log.

    Attributes:
      batch: groups that it consumes.
      aside: groups that were taken for later steps.
      uses: number of steps that have trained on each group that is used again.
    """

    batch: TrainedBatch
    aside: tuple[SimulatedGroup, ...]
    uses: dict[int, int]


class SimulatedTrainer(SimulatedProcess):
    """Trains, publishes, and saves."""

    def begin(self) -> None:
        """Looks at what an earlier life has left."""
        run = self.world.run
        self._chance = random.Random(f"{run.seed} trainer {self.life}")
        self._versions = {0: first_weights(run)}
        self._store = self.store(f"life {self.life}", run.schedule.versions_kept)
        self._meeting = GivingSide(self, self.world.links)
        self._aside: list[SimulatedGroup] = []
        self._uses = collections.Counter[int]()
        self._batches: dict[int, TrainedBatch] = {}
        self._over: set[int] = set()
        self._computed = self._logged = self._reported = 0
        self._is_saving = self._reads = False
        self._waiting: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        self.call(MASTER, AskCounted(), self._look)

    def handle(self, request: ArrivedCall, answer: Answerer) -> None:
        """Answers explorers that fetch weights."""
        self.command(request.message)
        match request.message:
            case FetchWeights(version, exactly, held):
                answer(self.offer(version, exactly, held))
            case FetchBlock(key):
                answer(self._store.payload(key))

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
        return self._versions[max(self._versions)]

    # Commands, one after the other, and what goes on beside them.

    def _proceed(self, restored: int | None = None) -> None:
        """Executes the next command.

        Args:
          restored: the end of a command that makes a state; see `commands`.
        """
        command = self._commands.send(restored)
        self.command(command)
        self._execute(command)

    def _once(self, is_so: Callable[[], bool], then: Callable[[], None]) -> None:
        """Does something once a condition holds."""
        self._waiting.append((is_so, then))
        self._look_again()

    def _look_again(self) -> None:
        """Does what has waited for what is true now."""
        for entry in [*self._waiting]:
            is_so, then = entry
            if entry in self._waiting and is_so():
                self._waiting.remove(entry)
                then()

    def _takes(self, least: float, most: float) -> float:
        return self._chance.uniform(least, most)

    def _execute(self, command: commands.TrainerCommand) -> None:
        disk = self.world.disk
        match command:
            case commands.Initialize():
                self._restored(0)
            case commands.RestoreNewest():
                self._restored(max(self._snapshots()))
            case commands.Restore(step):
                self._restored(step)
            case commands.AbandonRun(counted):
                raise BrokenRuleError(f"no snapshot and log lead to step {counted}")
            case commands.AnnounceBeginning():
                for prefix in ("log-", "taken-", MEMORY):
                    for name in disk.names(prefix):
                        disk.delete(name)
                self.call(MASTER, BeginRun(), lambda _: self._proceed())
            case commands.AnnounceGoingOn():
                self._proceed()
            case commands.OpenStreams(point):
                self._point = point
                self._computed = point.step
                self._logged, self._reported = point.logged, max(point.counted, point.step)
                self._proceed()
            case commands.TakeBatch(step):
                self._take_batch(step)
            case commands.LogBatch(step):
                entry = LoggedStep(self._batches[step], tuple(self._aside), {**self._uses})
                disk.write(self.name, _log_name(step), [entry])
                # One thread writes all of them.
                write = functools.partial(self._flush_log, step)
                begin = functools.partial(self.after, self._takes(0.01, 0.1), write)
                self._once(lambda: self._logged == step - 1, begin)
                self._proceed()
            case commands.TrainStep(step, is_counted):
                self._train(step, is_counted)
            case commands.AwaitLog():
                newest = max(self._batches, default=0)
                self._once(lambda: self._logged >= newest, self._proceed)
            case commands.AwaitReports():
                newest = max(self._batches, default=0)
                self._once(lambda: self._reported >= newest <= self._computed, self._proceed)
            case commands.PublishVersion(version):
                self._once(
                    lambda: self._computed >= version, functools.partial(self._publish, version)
                )
            case commands.SaveSnapshot(step, waits):
                save = functools.partial(self._save, step, waits)
                self._once(lambda: not self._is_saving, save)
            case commands.SaveInMemory(step):
                remember = functools.partial(self._remember, step)
                self._once(lambda: self._computed >= step, remember)
            case commands.EvaluateStep():
                self.after(self._takes(0.1, 0.5), self._proceed)
            case commands.GiveGroupsBack(reason):
                left = tuple(dict.fromkeys(group.lease_id for group in self._aside))
                self.call(MASTER, GroupsRefused(left, reason), lambda _: self._proceed())
            case commands.ServeWeights():
                self._serve(self._proceed)
            case commands.BeginEnd():
                self._proceed()
            case commands.EndTraining():
                self.world.end(self)

    # Starting.

    def _look(self, counted: int | None) -> None:
        known, remembered = None, set[int]()
        if counted is not None:
            known, remembered = KnownRun(0, counted), {*self._remembered()}
            if self.world.run.is_joint and self.world.run.is_exact:
                self._forget_after(counted)
        snapshots = tuple(sorted({*self._snapshots(), *remembered}))
        reaches = {step: self._reach(step) for step in (0, *snapshots)}
        run = self.world.run
        plan = TrainerPlan(
            run.schedule,
            run.steps,
            save_every_steps=run.save_every_steps,
            memory_every_steps=run.memory_every_steps,
            evaluate_every_steps=run.evaluate_every_steps,
        )
        self._life = TrainerLife(plan, LeftBehind(known, snapshots, reaches))
        self._commands = self._life.commands()
        self._proceed()

    def _forget_after(self, counted: int) -> None:
        """Deletes batches of steps that are not counted, whose groups are generated again."""
        for name in self.world.disk.names("log-"):
            if int(name.split("-")[1]) > counted:
                self.world.disk.delete(name)

    def _snapshots(self) -> list[int]:
        return [int(name.split("-")[1]) for name in self.world.disk.names("snapshot-")]

    def _remembered(self) -> list[int]:
        return [int(name.split("-")[1]) for name in self.world.disk.names(MEMORY)]

    def _reach(self, step: int) -> int:
        while self.world.disk.read(_log_name(step + 1)):
            step += 1
        return step

    def _restored(self, step: int) -> None:
        restored: int | None = step
        if step:
            disk = self.world.disk
            saved = disk.read(f"{MEMORY}{step:04d}") or disk.read(_snapshot_name(step))
            if saved:
                self._versions = {step: saved[0]}
            else:
                restored = None
        self.after(self._takes(0.5, 2.0), functools.partial(self._proceed, restored))

    # Batches.

    def _take_batch(self, step: int) -> None:
        point = self._point
        if step <= point.logged:
            batch = self._batches[step] = self.world.disk.read(_log_name(step))[0].batch
            if step > point.counted:
                self._over |= {group.lease_id for group in batch.groups}
                self._over -= {*batch.kept}
            self._proceed()
            return
        self._since = self.world.queue.now_secs
        until = self._since + WAIT_SECS
        self.world.invariants.waits(self.name, f"batch {step}", WAIT_SECS)
        self._compared_secs = self._since
        turn = functools.partial(self._turn, step, until)
        if self._reads or not point.goes_on:
            self._reads = True
            turn()
        else:
            self._reads = True
            self._go_on(step, turn)

    def _go_on(self, step: int, turn: Callable[[], None]) -> None:
        """Takes what an earlier life had taken, and all that is in the buffer.

        Only then it is known which groups are lost.
        """
        disk = self.world.disk
        last = disk.read(_log_name(step - 1))
        aside = [*last[0].aside] if last else []
        uses = last[0].uses if last else {}
        aside += [group for groups in disk.read(_taken_name(step)) for group in groups]
        listed = functools.partial(self._drain, step, uses, turn)
        keep = functools.partial(self._claim, aside)

        def ask(*_: object) -> None:
            # Groups that are buffered after this answer are not taken for lost.
            self.call(MASTER, ListBuffered(), lambda buffered: keep(lambda: listed(buffered)))

        ask()

    def _drain(
        self, step: int, uses: dict[int, int], turn: Callable[[], None], buffered: Sequence[int]
    ) -> None:
        again = functools.partial(self._drain, step, uses, turn, buffered)

        def take(groups: list[SimulatedGroup]) -> None:
            if groups:
                self._keep(step, groups, again)
                return
            there = {group.lease_id for group in self._aside} | self._over
            self._uses.update({one: count for one, count in uses.items() if one in there})
            lost = tuple(one for one in buffered if one not in there)
            if lost:
                self.call(MASTER, GroupsRefused(lost, LOST), lambda _: turn())
            else:
                turn()

        self.call(REPLAY, SampleGroups(_DRAINED_AT_ONCE), take, poll_secs=_POLL_SECS)

    def _keep(self, step: int, groups: list[SimulatedGroup], then: Callable[[], None]) -> None:
        """Keeps groups that the buffer has no more."""
        self.world.disk.append(self.name, _taken_name(step), groups)
        self.command("claim the groups")
        self._claim(groups, then)

    def _claim(self, groups: list[SimulatedGroup], then: Callable[[], None]) -> None:
        def add(over: list[int]) -> None:
            ended = self._over.union(over)
            self._aside += [group for group in groups if group.lease_id not in ended]
            then()

        self.call(MASTER, ClaimGroups(tuple(group.lease_id for group in groups)), add)

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
        taken = functools.partial(self._take, step, again)
        sample = SampleGroups(missing)
        self._serve(lambda: self.call(REPLAY, sample, taken, poll_secs=_POLL_SECS))

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

    def _take(self, step: int, again: Callable[[], None], groups: list[SimulatedGroup]) -> None:
        now = self.world.queue.now_secs
        if groups:
            self._keep(step, groups, again)
        elif now - self._compared_secs > _COMPARE_SECS:
            self._compared_secs = now
            self.call(REPLAY, ListGroups(), functools.partial(self.compare, again))
        else:
            again()

    def compare(self, again: Any, held: frozenset[int]) -> None:
        """Tells the master which groups there are, so that the others are leased again.

        The master may not have counted the last step yet, whose groups are not lost.
        """
        own = {group.lease_id for group in self._aside}
        if self._reported < self._life.step:
            own |= {group.lease_id for group in self._batches[self._life.step].groups}
        self.call(MASTER, HeldGroups(held | own), lambda _: again())

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
        self._over = {group.lease_id for group in groups} - {*kept}
        for group in groups:
            self._aside.remove(group)  # Other draws of the same groups are kept.
        self._aside = [one for one in self._aside if one.lease_id not in self._over]
        self._batches[step] = TrainedBatch(tuple(groups), kept)
        self._proceed()

    def _flush_log(self, step: int) -> None:
        self.command("flush the log")
        disk = self.world.disk
        disk.flush(_log_name(step))
        for name in disk.names("taken-"):
            if int(name.split("-")[1]) <= step:
                disk.delete(name)
        self._logged = step
        self._look_again()

    # Steps.

    def _train(self, step: int, is_counted: bool) -> None:
        """Computes a step once the one before it is computed, and reports it.

        The next command follows once the step before is reported.
        """
        compute = functools.partial(self._compute, step)
        self._once(lambda: self._computed == step - 1, compute)
        if not is_counted:
            self._once(
                lambda: self._computed >= step <= self._logged and self._reported == step - 1,
                functools.partial(self._report_step, step),
            )
        self._once(lambda: self._reported >= step - 1, self._proceed)

    def _compute(self, step: int) -> None:
        batch, began = self._batches[step], self.world.queue.now_secs
        is_again = step <= self._point.logged

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
            self._versions[step] = trained(self._versions[step - 1], batch.groups)
            self._computed = step
            self._look_again()

        self.after(self._takes(0.2, 1.5), end)

    def _report_step(self, step: int) -> None:
        batch = self._batches[step]
        event = BatchTrained(step, tuple(one.lease_id for one in batch.groups), (), batch.kept)
        tokens = sum(group.tokens for group in batch.groups)
        self.command(f"report step {step}")

        def reported(_: object) -> None:
            self._reported = step
            self._look_again()

        self.call(MASTER, StepDone(event, tokens), reported, channel="reports")

    def _publish(self, version: int) -> None:
        weights = self._versions[version]
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
        began, run = self.world.queue.now_secs, self.world.run
        kind = sync_kind(run.transfer)

        def announced(_: object) -> None:
            if run.is_joint and run.is_exact:
                explorers, until = {*range(1, run.explorers + 1)}, began + WAIT_SECS
                self._meeting.give_to_all(explorers, until, ended)
            else:
                ended()

        def ended() -> None:
            self.world.span(self.name, kind, began, version=version, step=version)
            self._proceed()

        self._meeting.hold(version, weights)
        self.call(MASTER, VersionPublished(version), announced)

    def _serve(self, then: Callable[[], None]) -> None:
        """Serves explorers that wait for weights, where the transfer needs it."""
        run = self.world.run
        if run.is_joint and not run.is_exact:
            self._meeting.serve(then)
        else:
            then()

    # Snapshots.

    def save_buffer(self, then: Any) -> None:
        """Lets the replay buffer save its content."""
        self.call(REPLAY, SaveBuffer(), lambda _: then(), channel="snapshots")

    def _save(self, step: int, waits: bool) -> None:
        """Saves a snapshot; its commands are executed beside others, unless they wait for it."""
        if step in self._snapshots():
            self._proceed()
            return
        name, disk, run = _snapshot_name(step), self.world.disk, self.world.run
        weights, began = self._versions[step], self.world.queue.now_secs
        needed = still_needed(run.schedule, step, self._snapshots(), run.steps)
        self._is_saving = True

        def write() -> None:
            self.command("write the snapshot")
            disk.write(self.name, f"partial-{name}", [weights])
            self.world.span(self.name, SpanKind.SNAPSHOT, began, step=step)
            self.flush(f"partial-{name}")
            self.command("rename the snapshot")
            disk.rename(f"partial-{name}", name)
            for old in self._snapshots()[: -run.keep]:
                if old not in needed:
                    disk.delete(_snapshot_name(old))
            self.call(MASTER, SnapshotTaken(step), saved, channel="snapshots")

        def saved(_: object) -> None:
            self.world.invariants.snapshot_begins(self.world.buffered())
            self.save_buffer(buffer_saved)

        def buffer_saved() -> None:
            self.world.invariants.snapshot_ends()
            first = first_logged(self._snapshots(), run.keep, needed)
            for one in disk.names("log-"):
                if int(one.split("-")[1]) < first:
                    disk.delete(one)
            self._is_saving = False
            self._look_again()

        self.after(self._takes(0.1, 0.5), write)
        if waits:
            self._once(lambda: not self._is_saving, self._proceed)
        else:
            self.after(self._takes(0.01, 0.1), self._proceed)

    def _remember(self, step: int) -> None:
        """Saves a snapshot in memory, unless another is being written."""
        if not self._is_saving:
            needed = still_needed(
                self.world.run.schedule, step, self._remembered(), self.world.run.steps
            )
            weights = self._versions[step]
            self._is_saving = True
            write = functools.partial(self._write_memory, step, weights, needed)
            self.after(self._takes(0.01, 0.1), write)
        self.after(self._takes(0.0, 0.05), self._proceed)

    def _write_memory(self, step: int, weights: int, needed: Sequence[int]) -> None:
        self.command("write to memory")
        disk = self.world.disk
        with contextlib.suppress(DiskFullError):  # The run goes on without it.
            disk.write(self.name, f"{MEMORY}{step:04d}", [weights])
            disk.flush(f"{MEMORY}{step:04d}")  # Only an outage deletes it.
            for old in self._remembered():
                if old != step and old not in needed:
                    disk.delete(f"{MEMORY}{old:04d}")
        self._is_saving = False
        self._look_again()

    def flush(self, name: str) -> None:
        """Makes a file durable before it gets its name."""
        self.world.disk.flush(name)


def _log_name(step: int) -> str:
    return f"log-{step:04d}"


def _taken_name(step: int) -> str:
    return f"taken-{step:04d}"


def _snapshot_name(step: int) -> str:
    return f"snapshot-{step:04d}"
