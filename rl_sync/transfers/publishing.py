"""The sending side of a sync, as the trainer's program sees it: one for each transfer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import jax

from rl_sync.observe.spans import SpanKind
from rl_sync.processes.session import Session
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.rendezvous import TrainerRendezvous
from rl_sync.transfers.serving import HolderServer
from rl_sync.types import Params
from rl_sync.weights.checkpoint import CheckpointPublisher
from rl_sync.weights.collective import CollectivePublisher, Sender
from rl_sync.weights.interface import Publisher
from rl_sync.weights.local import LocalPublisher
from rl_sync.weights.regions import Places
from rl_sync.weights.server_publisher import ServerPublisher


class Publishing(Protocol):
    """Publishes versions, and records what that takes."""

    def awaits(self, version: int) -> bool:
        """Whether the step that makes a version has to be over before it is published."""

    def publish(self, version: int, params: Params) -> None:
        """Offers a version to the explorers.

        Raises:
          RunStoppedError: the run is being stopped.
          WeightsTimeoutError: a deadline passed.
        """

    def serve(self) -> None:
        """Serves explorers that stand ready; called between steps and while the trainer waits."""

    def close(self) -> None:
        """Finishes what was begun."""


class NoPublishing:
    """For a run in which nobody generates, and so nobody needs weights; see `Publishing`."""

    def awaits(self, version: int) -> bool:
        """Never."""
        return False

    def publish(self, version: int, params: Params) -> None:
        """Leaves the weights where they are."""

    def serve(self) -> None:
        """Nobody stands ready."""

    def close(self) -> None:
        """Nothing was begun."""


class _Offering:
    """Versions are offered, and explorers take them when they like.

    Args:
      session: the trainer's.
      schedule: decides who waits.
      kind: of the spans.
      publisher: to whom versions are given.
    """

    def __init__(
        self, session: Session, schedule: SyncSchedule, kind: SpanKind, publisher: Publisher
    ):
        self._session, self._schedule = session, schedule
        self._kind, self._publisher = kind, publisher

    def awaits(self, version: int) -> bool:
        """Where the next batch is made with the version, so that there is nothing to go on with.

        The step's report, and the end of its span, then come before the first rollout that uses it.
        """
        schedule = self._schedule
        return schedule.pull == "exact" and schedule.first_user(version) == version + 1

    def publish(self, version: int, params: Params) -> None:
        """See `Publishing`."""
        self._session.check()
        with self._session.spans.span(self._kind, version=version):
            self._publisher.publish(version, params)

    def serve(self) -> None:
        """See `Publishing`; explorers serve themselves."""

    def close(self) -> None:
        """See `Publishing`."""
        self._publisher.close()


class CheckpointPublishing(_Offering):
    """Versions are saved in the background; explorers are told when one can be read.

    The parameters may be on their way still: they are copied on the device, and whoever saves the
    copy waits for it.

    Args:
      session: the trainer's.
      schedule: decides how many versions stay, and whether every one is needed.
      directory: where versions are saved.
      processes: the trainer's, by their indices in their cluster.
    """

    def __init__(
        self,
        session: Session,
        schedule: SyncSchedule,
        directory: str,
        processes: Iterable[int],
    ):
        publisher = CheckpointPublisher(
            directory,
            keep=schedule.versions_kept,
            may_skip=schedule.pull == "latest",
            timeout_secs=session.settings.launch.wait_secs,
            resume_from=schedule.start,
            on_saved=self._saved,
            processes=processes,
            agree=session.agree,
            agree_saving=session.team.thread("weights"),
        )
        super().__init__(session, schedule, SpanKind.SYNC_CHECKPOINT, publisher)

    def _saved(self, version: int, secs: float) -> None:
        now = self._session.spans.now()
        self._session.spans.record(
            SpanKind.SYNC_CHECKPOINT, now - secs, now, version=version, background=True
        )
        self._session.tell("published", version=version)


class LocalPublishing(_Offering):
    """Versions are handed over inside the process that trainer and explorers share.

    Args:
      session: the trainer's.
      schedule: decides who waits.
      publisher: which the explorers' ends know.
    """

    def __init__(self, session: Session, schedule: SyncSchedule, publisher: LocalPublisher):
        super().__init__(session, schedule, SpanKind.SYNC_COLLECTIVE, publisher)

    def publish(self, version: int, params: Params) -> None:
        """See `Publishing`; waits for nobody."""
        super().publish(version, params)
        self._session.call("published", version=version)


class ServerPublishing(_Offering):
    """Versions are cut on the devices and offered; explorers fetch them when they like.

    Args:
      session: the trainer's.
      schedule: decides how many versions are offered.
      like: the parameters' shapes and places.
      places: where explorers hold them.
      host: the interface at which explorers reach this process.
    """

    def __init__(
        self, session: Session, schedule: SyncSchedule, like: Params, places: Places, host: str
    ):
        publisher = ServerPublisher(
            like,
            host=host,
            places=places,
            keep=schedule.versions_in_use,
            on_ready=lambda version: session.tell("published", version=version),
        )
        super().__init__(session, schedule, SpanKind.SYNC_SERVER, publisher)
        self._server = HolderServer(publisher, host, session.secret)
        session.call_alone("hold", process=jax.process_index(), address=self._server.address)

    def close(self) -> None:
        """See `Publishing`; what is still being fetched has no use any more."""
        super().close()
        self._server.close()


class CollectivePublishing:
    """Versions go from device to device: at a meeting under exact pulls, else when asked for.

    Args:
      session: the trainer's.
      schedule: decides whether all meet.
      links: the way to each explorer, by its number.
    """

    def __init__(self, session: Session, schedule: SyncSchedule, links: Mapping[int, Sender]):
        self._session, self._meet = session, schedule.pull == "exact"
        self._rendezvous = TrainerRendezvous(session)
        self._publisher = CollectivePublisher(
            links,
            self._rendezvous,
            meet=self._meet,
            timeout_secs=session.settings.launch.wait_secs,
            agree=session.agree,
        )

    def awaits(self, version: int) -> bool:
        """Always: explorers that are let in would stand in the transfer until there are values."""
        return True

    def publish(self, version: int, params: Params) -> None:
        """See `Publishing`."""
        self._session.check()
        self._rendezvous.settle()
        started = self._session.spans.now()
        try:
            self._publisher.publish(version, params)
        finally:
            granted = self._rendezvous.granted_secs
            self._rendezvous.settle()
        self._record(started if granted is None else granted, version=version)

    def serve(self) -> None:
        """See `Publishing`."""
        if self._meet:
            return
        self._rendezvous.settle()
        served = self._publisher.serve_waiting()
        if (granted := self._rendezvous.granted_secs) is not None:
            explorers = [explorer for explorer, _ in served]
            self._record(granted, version=served[-1][1], explorers=explorers)

    def _record(self, started: float, **attributes: object) -> None:
        now = self._session.spans.now()
        self._session.spans.record(SpanKind.SYNC_COLLECTIVE, started, now, **attributes)

    def close(self) -> None:
        """See `Publishing`."""
        self._publisher.close()
