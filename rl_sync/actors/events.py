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
      groups_per_lease: the most groups that an explorer has under way at once.
      lease_secs: how long a lease lives without a sign of life from its explorer.
      carries_over: whether explorers leave groups unfinished and go on with them in their next
        rollouts; under latest pulls.
    """

    schedule: SyncSchedule
    steps: int
    groups_per_step: int
    explorers: int
    groups_per_lease: int
    lease_secs: float
    carries_over: bool = False

    def step_of(self, ordinal: int) -> int:
        """The explorer step that an ordinal belongs to under exact pulls."""
        return ordinal // self.groups_per_step + 1

    def share(self, explorer: int, step: int) -> range:
        """The ordinals of an explorer step that fall to one explorer under exact pulls."""
        first = (step - 1) * self.groups_per_step
        return range(first + explorer - 1, first + self.groups_per_step, self.explorers)


class LiveLease(NamedTuple):
    """A lease that has not ended.

    Attributes:
      version: no token of its group is of an older one.
    """

    lease_id: int
    ordinal: int
    attempt: int
    explorer: int
    version: int
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
    """An explorer asks for work.

    Attributes:
      unfinished: how many groups it has under way, those whose lease is over among them.
    """

    explorer: int
    now_secs: float
    unfinished: int = 0


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
    """Answers `LeaseRequested`: generate these, and go on with what is unfinished.

    Attributes:
      version: of the weights to do it with.
      exactly: whether only this version will do; else any that is not older.
      leases: none where there is no room but the explorer has something unfinished.
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
