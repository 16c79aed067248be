"""The two ends of a transfer, as the programs of trainer and explorers see them.

A transfer is a module of this folder, with its name in `rl_sync.transfer.TRANSFERS` and its `ENDS`.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

from rl_sync.models.sharding import Layout
from rl_sync.observe.spans import SpanKind
from rl_sync.processes.resources import Resources
from rl_sync.processes.session import Session
from rl_sync.schedule import SyncSchedule
from rl_sync.transfer import TRANSFERS
from rl_sync.types import Params
from rl_sync.weights.interface import Publisher, Puller

HANDED_OVER = "local"
"""The module for roles that share a process, in place of a joint transfer's own."""


@dataclasses.dataclass(frozen=True)
class Site:
    """Surroundings of an end, and what it is made for.

    Attributes:
      session: of the program whose end it is.
      kind: of the spans.
      resources: that program's.
      master_address: `host:port`.
      like_on: the shapes and shardings of the weights that travel, on a layout.
    """

    session: Session
    kind: SpanKind
    resources: Resources
    master_address: str
    like_on: Callable[[Layout], Params]

    @property
    def like(self) -> Params:
        """The weights' shapes, and their shardings in this program."""
        return self.like_on(self.resources.layout)

    @property
    def verify(self) -> bool:
        """Says whether explorers compare what they got with what was published."""
        return self.session.settings.sync.verify


class TrainerEnd(Publisher, Protocol):
    """A publisher that knows who waits for whom, and records spans."""

    def awaits(self, version: int) -> bool:
        """Says whether the step that makes a version has to be over before it is published."""

    def publish(self, version: int, params: Params) -> None:
        """Offers a version to the explorers.

        Raises:
          RunStoppedError: the run is being stopped.
          WeightsTimeoutError: a deadline passed.
        """

    def serve(self) -> None:
        """Serves explorers that stand ready; called between steps and while the trainer waits."""


class ExplorerEnd(NamedTuple):
    """A puller, and what it knows of its last pull.

    Attributes:
      granted_secs: when that began, if the puller had to be let in; by the clock of the spans.
    """

    puller: Puller
    granted_secs: Callable[[], float] = lambda: 0.0


class Ends(NamedTuple):
    """The making of a transfer's ends, and what they take.

    Attributes:
      trainer, explorer: make the ends.
      published_bytes: from the bytes of a version, what the trainer's process holds at most of
        versions that it publishes.
      arriving_bytes: likewise what an explorer's process holds of a version that arrives.
      try_out: raises `TransferUnavailableError` where the transfer cannot be had; told the master's
        address.
    """

    trainer: Callable[[Site, SyncSchedule], TrainerEnd]
    explorer: Callable[[Site], ExplorerEnd]
    published_bytes: Callable[[int, SyncSchedule], int]
    arriving_bytes: Callable[[int], int]
    try_out: Callable[[str], None] = lambda master_address: None


def ends_of(transfer: str, in_one_process: bool = False) -> Ends:
    """The ends of a transfer; loads only the libraries that it needs.

    Args:
      transfer: a key of `TRANSFERS`.
      in_one_process: whether trainer and explorers share a process.
    """
    handed_over = in_one_process and TRANSFERS[transfer].is_joint
    module = HANDED_OVER if handed_over else transfer
    ends: Ends = importlib.import_module(f"{__package__}.{module}").ENDS
    return ends


class NoTransfer:
    """The trainer's end in a run in which nobody generates; see `TrainerEnd`."""

    def awaits(self, version: int) -> bool:
        """Never."""
        return False

    def publish(self, version: int, params: Params) -> None:
        """Leaves the weights where they are."""

    def serve(self) -> None:
        """Nobody stands ready."""

    def close(self) -> None:
        """Nothing was begun."""


class Offering:
    """A trainer's end that offers versions, which explorers take when they like.

    Args:
      site: the trainer's.
      schedule: decides who waits.
      publisher: who is given the versions.
    """

    def __init__(self, site: Site, schedule: SyncSchedule, publisher: Publisher):
        self._session, self._kind = site.session, site.kind
        self._schedule, self._publisher = schedule, publisher

    def awaits(self, version: int) -> bool:
        """Says whether the next batch needs the version, so that there is nothing to go on with.

        The step's report, and the end of its span, then come before the first rollout that uses it.
        """
        schedule = self._schedule
        return schedule.pull == "exact" and schedule.first_user(version) == version + 1

    def publish(self, version: int, params: Params) -> None:
        """See `TrainerEnd`."""
        self._session.check()
        with self._session.spans.span(self._kind, version=version):
            self._publisher.publish(version, params)

    def serve(self) -> None:
        """See `TrainerEnd`; explorers serve themselves."""

    def close(self) -> None:
        """See `TrainerEnd`."""
        self._publisher.close()
