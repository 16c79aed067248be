"""Broken processes, each with one mistake that real systems have made."""

from __future__ import annotations

import dataclasses

from rl_sync.roles.explorer import control
from rl_sync.roles.master.events import GroupsRefused, LeaseRequested
from rl_sync.schedule import SyncSchedule
from rl_sync.simulation.faults.explorer_process import SimulatedExplorer
from rl_sync.simulation.faults.master_process import SimulatedMaster
from rl_sync.simulation.faults.trainer_process import SimulatedTrainer
from rl_sync.simulation.faults.weights_store import WeightsStore
from rl_sync.simulation.faults.world import Parts


class AnswersBeforeFlush(SimulatedMaster):
    """A grant leaves before it is durable, so that a restarted master grants the lease again."""

    def send_after_flush(self):
        return False


class ForgetsCalls(SimulatedMaster):
    """A request that comes again is a new one: its explorer gets other leases."""

    def answered_before(self, thread, request, answer):
        return False


class SnapshotWithoutBuffer(SimulatedTrainer):
    """The buffer is not a part of the snapshot."""

    def save_buffer(self, then):
        self.after(0.01, then)


class BoundOffByOne(SimulatedMaster):
    """The master leases one step further ahead than the trainer accepts."""

    def __init__(self, world, name):
        super().__init__(world, name)
        schedule: SyncSchedule = self._settings.schedule
        self._settings = dataclasses.replace(
            self._settings,
            schedule=dataclasses.replace(schedule, max_staleness=schedule.max_staleness + 1),
        )


class TrainerTakesStale(SimulatedTrainer):
    """The trainer accepts groups that are one step older than the bound."""

    def __init__(self, world, name):
        super().__init__(world, name)
