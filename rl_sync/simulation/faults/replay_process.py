"""The replay buffer in the simulation: a table in memory, and a checkpoint on the disk."""

from __future__ import annotations

import functools
import random
from typing import NamedTuple

from rl_sync.simulation.faults.invariants import SimulatedGroup
from rl_sync.simulation.faults.processes import Answerer, ArrivedCall, SimulatedProcess

_CHECKPOINT, _PARTIAL = "buffer", "partial-buffer"
_POLL_SECS = 0.1


class InsertGroup(NamedTuple):
    """Inserts a group; a group that is there already is replaced."""

    group: SimulatedGroup


class SampleGroups(NamedTuple):
    """Takes up to so many groups, and waits for the first; ends with a list."""

    most: int


class ListGroups(NamedTuple):
    """Lists the lease ids of all groups."""


class SaveBuffer(NamedTuple):
    """Saves the content."""


class SimulatedReplay(SimulatedProcess):
    """Keeps groups until each was sampled as often as allowed."""

    def begin(self) -> None:
        """Reads the checkpoint."""
        saved = self.world.disk.read(_CHECKPOINT)
        self._table: dict[int, tuple[SimulatedGroup, int]] = dict(saved[0]) if saved else {}
        self.world.invariants.buffer_restarted(self.buffered)
        self._chance = random.Random(f"{self.world.run.seed} {self.life}")

    @property
    def buffered(self) -> frozenset[int]:
        """Lease ids of the groups in the table."""
        return frozenset(self._table)

    def handle(self, request: ArrivedCall, answer: Answerer) -> None:
        """See `SimulatedProcess`."""
        self.command(request.message)
        match request.message:
            case InsertGroup(group):
                self._table[group.lease_id] = group, self.world.run.times_sampled
                answer(None)
            case SampleGroups(most):
                self._sample(most, self.world.queue.now_secs + request.poll_secs, answer)
            case ListGroups():
                answer(self.buffered)
            case SaveBuffer():
                self._save()
                answer(None)

    def _sample(self, most: int, until: float, answer: Answerer) -> None:
        """Samples: in the order of insertion, or at random if groups are sampled several times."""
        if not self._table and self.world.queue.now_secs < until:
            self.after(_POLL_SECS, functools.partial(self._sample, most, until, answer))
            return
        found = []
        for _ in range(most):
            if not self._table:
                break
            ids = [*self._table]
            lease_id = ids[0] if self.world.run.times_sampled == 1 else self._chance.choice(ids)
            group, left = self._table[lease_id]
            found.append(group)
            if left == 1:
                self.world.invariants.sampled(lease_id)
                del self._table[lease_id]
            else:
                self._table[lease_id] = group, left - 1
        answer(found)

    def _save(self) -> None:
        disk = self.world.disk
        disk.write(self.name, _PARTIAL, [dict(self._table)])
        disk.flush(_PARTIAL)
        self.command("rename the checkpoint")
        disk.rename(_PARTIAL, _CHECKPOINT)
