"""What the master hears and answers: its settings, events and commands, as plain records."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from rl_sync.schedule import SyncSchedule

TOO_STALE = "too stale"
LEASE_EXPIRED = "lease expired"
RUN_ENDED = "the run ended"


@dataclasses.dataclass(frozen=True)
class MasterSettings:
    """What the master needs to know about the run.

    Attributes:
      schedule: the sync schedule.
      steps: trainer steps of the whole run.
      groups_per_step: groups that one trainer step consumes, B.
      explorers: how many explorers take part; under exact pulls in lockstep.
      groups_per_lease: the most groups that are leased to an explorer at once.
      lease_secs: how long a lease lives without a sign of life from its explorer.
    """

    schedule: SyncSchedule
    steps: int
    groups_per_step: int
    explorers: int
    groups_per_lease: int
    lease_secs: float

    def step_of(self, ordinal: int) -> int:
        """The explorer step that an ordinal belongs to under exact pulls."""
        return ordinal // self.groups_per_step + 1

    def share(self, explorer: int, step: int) -> range:
        """The ordinals of an explorer step that fall to one explorer under exact pulls."""
        first = (step - 1) * self.groups_per_step
        return range(first + explorer - 1, first + self.groups_per_step, self.explorers)


class LiveLease(NamedTuple):
    """A lease that has not ended."""

    lease_id: int
    ordinal: int
    attempt: int
    explorer: int
    buffered: bool
    deadline_secs: float


class Position(NamedTuple):
    """Where a run stands in the order of prompts: enough to go on from.

    Attributes:
      step: finished trainer steps.
      next_ordinal: the first ordinal that was never leased.
      again: ordinals before it that were not trained, in order.
      next_lease: the next lease id.
    """

    step: int
    next_ordinal: int
    again: tuple[int, ...]
    next_lease: int


class Started(NamedTuple):
    """The trainer is ready and tells where the run stands."""

    position: Position


class LeaseRequested(NamedTuple):
    """An explorer asks for work."""

    explorer: int
    now_secs: float


class GroupsBuffered(NamedTuple):
    """An explorer has written groups to the replay buffer."""

    lease_ids: tuple[int, ...]


class BatchTrained(NamedTuple):
    """The trainer has finished a step."""

    step: int
    lease_ids: tuple[int, ...]


class GroupsRefused(NamedTuple):
    """The trainer has taken groups out of the buffer and does not train on them."""

    lease_ids: tuple[int, ...]
    reason: str


class VersionPublished(NamedTuple):
    """The trainer has published the weights of a version."""

    version: int


class ExplorerSeen(NamedTuple):
    """A sign of life, which renews the explorer's leases."""

    explorer: int
    now_secs: float


class Ticked(NamedTuple):
    """Time passes: leases may have expired."""

    now_secs: float


class StopRequested(NamedTuple):
    """The run is to end early."""

    reason: str


Event = (
    Started
    | LeaseRequested
    | GroupsBuffered
    | BatchTrained
    | GroupsRefused
    | VersionPublished
    | ExplorerSeen
    | Ticked
    | StopRequested
)


class GrantLeases(NamedTuple):
    """Answers `LeaseRequested`: generate these, with weights of `version`.

    Attributes:
      exactly: whether only this version will do; else any that is not older.
    """

    step: int
    version: int
    exactly: bool
    leases: tuple[LiveLease, ...]


class HoldBack(NamedTuple):
    """Answers `LeaseRequested`: not yet."""

    reason: str


class Finish(NamedTuple):
    """Answers `LeaseRequested`: there is no more to do."""

    reason: str


class Record(NamedTuple):
    """A line of the ledger: what happened to leases."""

    event: str
    leases: tuple[LiveLease, ...]
    reason: str = ""


Command = GrantLeases | HoldBack | Finish | Record
