"""The trainer's files in the simulation: snapshots, and the log of batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rl_sync.checkpoints.batch_log import LoggedBatch
from rl_sync.checkpoints.snapshots import Retention, SnapshotError
from rl_sync.records.json_lines import JsonObject
from rl_sync.simulation.faults.disk import DiskFullError
from rl_sync.simulation.faults.virtual_process import VirtualProcess
from rl_sync.types import Group

MEMORY = "memory-"
"""First letters of the names of snapshots in memory, which an outage deletes."""


class ComputedWeights(NamedTuple):
    """Weights on the trainer's device, which computes them until a certain time."""

    value: int
    until_secs: float


class SimulatedState(NamedTuple):
    """The trainer's state, without teachers."""

    step: int
    params: ComputedWeights
    teachers: None = None


class SimulatedFolder:
    """A folder of snapshots; see `SnapshotFolder`.

    Args:
      process: the trainer's process.
      prefix: first letters of the snapshots' names.
      chance: source of durations.
      flush: makes a file durable.
    """

    def __init__(
        self,
        process: VirtualProcess,
        prefix: str,
        chance: random.Random,
        flush: Callable[[str], None],
    ) -> None:
        self._process, self._prefix, self._chance, self._flush = process, prefix, chance, flush
        self._disk = process.world.disk

    def steps(self) -> list[int]:
        """See `SnapshotFolder`."""
        return [int(name.removeprefix(self._prefix)) for name in self._disk.names(self._prefix)]

    def newest(self) -> int | None:
        """See `SnapshotFolder`."""
        return max(self.steps(), default=None)

    def copied(self, state: SimulatedState) -> SimulatedState:
        """See `SnapshotFolder`; waits until the state is computed."""
        clock = self._process.clock
        clock.sleep(
            max(0.0, state.params.until_secs - clock.now()) + self._chance.uniform(0.0, 0.1)
        )
        return state

    def save(
        self,
        step: int,
        state: SimulatedState,
        metadata: JsonObject,
        retention: Retention,
    ) -> None:
        """See `SnapshotFolder`."""
        process, name = self._process, self._name(step)
        process.clock.sleep(self._chance.uniform(0.01, 0.5))
        process.command(f"write {name}")
        try:
            self._disk.write(process.name, f"partial-{name}", [(self.copied(state), metadata)])
        except DiskFullError as error:
            if self._prefix == MEMORY:
                raise SnapshotError(str(error)) from error
            process.give_up(str(error))
        self._flush(f"partial-{name}")
        process.command(f"rename {name}")
        self._disk.rename(f"partial-{name}", name)
        for old in retention.superfluous(step, self.steps()):
            self._disk.delete(self._name(old))

    def load(self, step: int | None, abstract: object) -> tuple[int, SimulatedState, JsonObject]:
        """See `SnapshotFolder`."""
        del abstract
        self._process.clock.sleep(self._chance.uniform(0.5, 2.0))
        step = max(self.steps()) if step is None else step
        found = self._disk.read(self._name(step))
        if not found:
            raise SnapshotError(f"the snapshot of step {step} is damaged")
        state, metadata = found[0]
        return step, state._replace(params=state.params._replace(until_secs=0.0)), metadata

    def clear(self) -> None:
        """See `SnapshotFolder`."""
        for name in self._disk.names(self._prefix):
            self._disk.delete(name)

    def _name(self, step: int) -> str:
        return f"{self._prefix}{step:04d}"


class SimulatedLog:
    """The log of batches; see `BatchLog`.

    Args:
      process: the trainer's process.
      chance: source of durations.
    """

    def __init__(self, process: VirtualProcess, chance: random.Random) -> None:
        self._process, self._chance, self._disk = process, chance, process.world.disk

    def write(self, step: int, logged: LoggedBatch) -> None:
        """See `BatchLog`."""
        process, name = self._process, f"log-{step:04d}"
        self._guarded(lambda: self._disk.write(process.name, name, [logged]))
        process.clock.sleep(self._chance.uniform(0.01, 0.1))
        process.command("flush the log")
        self._disk.flush(name)
        for one in self._disk.names("taken-"):
            if int(one.removeprefix("taken-")) <= step:
                self._disk.delete(one)

    def write_taken(self, step: int, groups: Sequence[Group]) -> None:
        """See `BatchLog`; it outlives a death of the process, not of the machine."""
        process = self._process
        self._guarded(lambda: self._disk.append(process.name, f"taken-{step:04d}", [*groups]))
        process.command("claim the groups")

    def read(self, step: int) -> LoggedBatch | None:
        """See `BatchLog`."""
        found = self._disk.read(f"log-{step:04d}")
        return found[0] if found else None

    def read_taken(self, step: int) -> list[Group]:
        """See `BatchLog`."""
        return [group for groups in self._disk.read(f"taken-{step:04d}") for group in groups]

    def reach(self, start: int) -> int:
        """See `BatchLog`."""
        step = start
        while self.read(step + 1) is not None:
            step += 1
        return step

    def forget(self, until: int) -> None:
        """See `BatchLog`."""
        self._delete(lambda step: step <= until)

    def forget_after(self, step: int) -> None:
        """See `BatchLog`."""
        self._delete(lambda other: other > step)
        for name in self._disk.names("taken-"):
            self._disk.delete(name)

    def _delete(self, is_over: Callable[[int], bool]) -> None:
        for name in self._disk.names("log-"):
            if is_over(int(name.removeprefix("log-"))):
                self._disk.delete(name)

    def _guarded(self, write: Callable[[], None]) -> None:
        """Writes; a full disk ends the process."""
        try:
            write()
        except DiskFullError as error:
            self._process.give_up(str(error))
