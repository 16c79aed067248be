"""The registry of transfers: the trainer's end and the explorers' end of each.

A transfer is a module of this folder that defines `ENDS`, and whose name is in
`rl_sync.transfer.TRANSFERS`.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from rl_sync.cluster.process_resources import Resources
from rl_sync.cluster.session import Session
from rl_sync.models.sharding import Layout
from rl_sync.records.spans import SpanKind
from rl_sync.schedule import SyncSchedule
from rl_sync.transfer import TRANSFERS
from rl_sync.types import Params
from rl_sync.weights.ends_interface import Publisher, Puller

HANDED_OVER = "local"
"""Module for roles that share a process, which replaces a joint transfer's own."""


@dataclasses.dataclass(frozen=True)
class EndSite:
    """The program that an end belongs to.

    Attributes:
      session: session of the program.
      kind: span kind of transfers.
      resources: resources of the program.
      master_address: the master's `host:port`.
      abstract_params_on: returns abstract params of a version, with their shardings on a layout.
      frame: returns the files, by name, that make a checkpoint of transformers with a version's
        weights; none if there is no such checkpoint.
    """

    session: Session
    kind: SpanKind
    resources: Resources
    master_address: str
    abstract_params_on: Callable[[Layout], Params]
    frame: Callable[[], Mapping[str, bytes]] = dict

    @property
    def abstract_params(self) -> Params:
        """Abstract params of a version, with their shardings in this program."""
        return self.abstract_params_on(self.resources.layout)

    @property
    def verify(self) -> bool:
        """True if explorers compare the digests of received and published weights."""
        return self.session.settings.sync.verify


class TrainerEnd(Publisher, Protocol):
    """A publisher that knows which side waits for the other, and records spans."""

    def awaits(self, version: int) -> bool:
        """Says whether the step that makes a version must be over before it is published."""

    def publish(self, version: int, params: Params) -> None:
        """Offers a version to the explorers.

        Raises:
          RunStoppedError: the run is being stopped.
          WeightsTimeoutError: a deadline passed.
        """

    def serve(self) -> None:
        """Serves explorers that are ready; called between steps and while the trainer waits."""


class ExplorerEnd(NamedTuple):
    """A puller, and the time at which its last transfer began.

    Attributes:
      puller: the puller.
      began_secs: returns the time at which the weights of the last pull could begin to travel, by
        the clock of the spans: that of the trainer's grant, or when it had computed them. 0 where
        that is when the pull began.
      at_hand: returns the newest version that has arrived and can be pulled at once; None where
        versions travel when they are pulled.
    """

    puller: Puller
    began_secs: Callable[[], float] = lambda: 0.0
    at_hand: Callable[[], int | None] = lambda: None


class Ends(NamedTuple):
    """A transfer: how to make its ends, and the memory that they need.

    Attributes:
      trainer: makes the trainer's end.
      explorer: makes an explorer's end.
      published_bytes: from the size of a version, returns the maximum bytes of published versions
        in the trainer's process. Its last argument says whether explorers get what changed.
      arriving_bytes: from the size of a version, returns the maximum bytes that an explorer's
        process needs while a version arrives, in addition to the version. Its last argument is the
        same.
      try_out: raises `TransferUnavailableError` if the transfer cannot move whole versions. Takes
        the master's address.
    """

    trainer: Callable[[EndSite, SyncSchedule], TrainerEnd]
    explorer: Callable[[EndSite], ExplorerEnd]
    published_bytes: Callable[[int, SyncSchedule, bool], int]
    arriving_bytes: Callable[[int, bool], int]
    try_out: Callable[[str], None] = lambda master_address: None


def ends_of(transfer: str, in_one_process: bool = False) -> Ends:
    """Returns the ends of a transfer; imports only the libraries that it needs.

    Args:
      transfer: a key of `TRANSFERS`.
      in_one_process: whether trainer and explorers share a process.
    """
    handed_over = in_one_process and TRANSFERS[transfer].is_joint
    module = HANDED_OVER if handed_over else transfer
    ends: Ends = importlib.import_module(f"{__package__}.{module}").ENDS
    return ends


class NoTransfer:
    """The trainer's end in a run without explorers; see `TrainerEnd`."""

    def awaits(self, version: int) -> bool:
        """Never."""
        return False

    def publish(self, version: int, params: Params) -> None:
        """Does nothing: no explorer needs the weights."""

    def serve(self) -> None:
        """Does nothing: there are no explorers."""

    def close(self) -> None:
        """Does nothing: no transfer was started."""


class Offering:
    """A trainer's end that offers versions, which explorers fetch at any time.

    Args:
      site: the trainer's site.
      schedule: decides which side waits.
      publisher: offers the versions.
    """

    def __init__(self, site: EndSite, schedule: SyncSchedule, publisher: Publisher):
        self._session, self._kind = site.session, site.kind
        self._schedule, self._publisher = schedule, publisher

    def awaits(self, version: int) -> bool:
        """Says whether the next batch needs the version.

        Then the step's report, and the end of its span, come before the first rollout that uses it.
        """
        schedule = self._schedule
        return schedule.pull == "exact" and schedule.first_user(version) == version + 1

    def publish(self, version: int, params: Params) -> None:
        """See `TrainerEnd`."""
        self._session.check()
        with self._session.spans.span(self._kind, version=version):
            self._publisher.publish(version, params)

    def serve(self) -> None:
        """See `TrainerEnd`; explorers need no service here."""

    def close(self) -> None:
        """See `TrainerEnd`."""
        self._publisher.close()
