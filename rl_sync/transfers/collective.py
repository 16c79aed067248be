"""The ends of collective transfers, which meet over the master: it hosts the meeting point."""

from __future__ import annotations

import contextlib
import time

from rl_sync.actors.events import VersionPublished
from rl_sync.observe.spans import SpanKind
from rl_sync.processes.calls import Happened
from rl_sync.processes.session import RunStoppedError, Session
from rl_sync.processes.topology import layout_of
from rl_sync.processes.weight_calls import (
    AskNewest,
    AskWaiting,
    AskWeights,
    AwaitGrant,
    GrantWeights,
    Withdraw,
)
from rl_sync.roles import TRAINER, explorer_name, number_of
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.ends import Ends, ExplorerEnd, Site
from rl_sync.types import Params
from rl_sync.weights.collective import CollectivePublisher, CollectivePuller
from rl_sync.weights.link import BUCKET_BYTES, Link
from rl_sync.weights.rendezvous import Grant, Request

_POLL_SECS = 1.0


class RemoteRendezvous:
    """An explorer's side; see `rl_sync.weights.rendezvous.Rendezvous`.

    Attributes:
      granted_secs: when the last grant came, by the clock of the session's spans.
    """

    def __init__(self, session: Session):
        self._session = session
        self.granted_secs = 0.0

    def request(
        self, explorer: int, *, exactly: int | None, at_least: int | None, timeout_secs: float
    ) -> Grant:
        """Stands ready until the trainer grants.

        Raises:
          TimeoutError: no grant came; the request is withdrawn.
          RunStoppedError: the run is being stopped; the request is withdrawn.
        """
        return self._session.agree(
            "grant", lambda: self._request(explorer, exactly, at_least, timeout_secs)
        )

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """See `rl_sync.weights.rendezvous.Rendezvous`."""
        return self._session.call(AskNewest(at_least, timeout_secs))

    def _request(
        self, explorer: int, exactly: int | None, at_least: int | None, timeout_secs: float
    ) -> Grant:
        call = self._session.call
        deadline = time.monotonic() + timeout_secs
        ticket = call(AskWeights(explorer, exactly, at_least))
        wait = {"reason": "synchronization", "for_whom": "the trainer"}
        with self._session.spans.span(SpanKind.WAIT, version=exactly or at_least, **wait):
            grant, stopped = None, None
            while grant is None and stopped is None and time.monotonic() < deadline:
                grant = call(AwaitGrant(ticket, _POLL_SECS))
                try:
                    self._session.check()
                except RunStoppedError as error:
                    stopped = error
            # A grant that came before the withdrawal must be followed: the trainer enters.
            grant = grant or call(Withdraw(ticket))
        if grant is not None:
            self.granted_secs = self._session.spans.now()
            return grant
        if stopped is not None:
            raise stopped
        raise TimeoutError(f"the trainer granted nothing within {timeout_secs:.0f} s")


class RemoteTrainerRendezvous:
    """The trainer's side; see `rl_sync.weights.rendezvous.TrainerRendezvous`.

    While nobody stands ready, and the caller means to wait, a span of that wait is open. It ends
    with the first grant, or with `settle`.

    Attributes:
      granted_secs: when the first grant after `settle` was given; None before it.
    """

    def __init__(self, session: Session):
        self._session = session
        self._waiting = contextlib.ExitStack()
        self._waits = False
        self.granted_secs: float | None = None

    def settle(self) -> None:
        """Ends the span of an open wait, and forgets earlier grants."""
        self._waiting.close()
        self._waits, self.granted_secs = False, None

    def waiting(self, timeout_secs: float) -> list[Request]:
        """The explorers that stand ready; waits for a first one.

        Raises:
          RunStoppedError: the run is being stopped.
        """
        return self._session.agree("explorers that wait", lambda: self._look(timeout_secs))

    def _look(self, timeout_secs: float) -> list[Request]:
        self._session.check()
        requests = self._session.call(AskWaiting(0.0))
        if not requests and timeout_secs > 0:
            if not self._waits:
                wait = {"reason": "synchronization", "for_whom": "the explorers"}
                self._waiting.enter_context(self._session.spans.span(SpanKind.WAIT, **wait))
                self._waits = True
            poll = min(timeout_secs, _POLL_SECS)
            requests = self._session.call(AskWaiting(poll))
        return requests

    def grant(self, request: Request, version: int, digest: str) -> bool:
        """Grants a request; False when it was withdrawn."""
        granted = self._session.call(GrantWeights(request, Grant(version, digest)))
        if granted:
            self._waiting.close()
            self._waits = False
            self.granted_secs = self.granted_secs or self._session.spans.now()
        return granted

    def announce(self, version: int) -> None:
        """Tells everybody that a version can be had."""
        self._session.call(Happened(VersionPublished(version)))


class CollectiveTrainerEnd:
    """Sends versions from device to device: at a meeting under exact pulls, else when asked for.

    Args:
      site: the trainer's.
      schedule: decides whether all meet.
    """

    def __init__(self, site: Site, schedule: SyncSchedule):
        self._session, self._kind = site.session, site.kind
        self._meet = schedule.pull == "exact"
        self._rendezvous = RemoteTrainerRendezvous(site.session)
        settings = site.session.settings
        self._publisher = CollectivePublisher(
            {number: _link(site, number) for number in range(1, settings.explorers + 1)},
            self._rendezvous,
            meet=self._meet,
            timeout_secs=settings.launch.wait_secs,
            agree=site.session.agree,
        )

    def awaits(self, version: int) -> bool:
        """Always: explorers that are let in would stand in the transfer until there are values."""
        return True

    def publish(self, version: int, params: Params) -> None:
        """See `TrainerEnd`."""
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
        """See `TrainerEnd`."""
        if self._meet:
            return
        self._rendezvous.settle()
        served = self._publisher.serve_waiting()
        if (granted := self._rendezvous.granted_secs) is not None:
            explorers = [explorer for explorer, _ in served]
            self._record(granted, version=served[-1][1], explorers=explorers)

    def _record(self, started: float, **attributes: object) -> None:
        now = self._session.spans.now()
        self._session.spans.record(self._kind, started, now, **attributes)

    def close(self) -> None:
        """See `TrainerEnd`."""
        self._publisher.close()


def _explorer(site: Site) -> ExplorerEnd:
    number, rendezvous = number_of(site.session.role), RemoteRendezvous(site.session)
    puller = CollectivePuller(_link(site, number), number, rendezvous, check_digest=site.verify)
    return ExplorerEnd(puller, lambda: rendezvous.granted_secs)


def _link(site: Site, explorer: int) -> Link:
    """The way of the weights from the trainer to an explorer, in a cluster of both."""
    settings = site.session.settings
    there, here = (
        site.like_on(layout_of(settings, role)) for role in (TRAINER, explorer_name(explorer))
    )
    return Link(there, here)


def _bucket(version: int) -> int:
    """The bytes that a transfer sends and gets at once."""
    return min(version, BUCKET_BYTES)


def _published_bytes(version: int, schedule: SyncSchedule) -> int:
    return _bucket(version) + (schedule.pull == "latest") * version


ENDS = Ends(
    trainer=CollectiveTrainerEnd,
    explorer=_explorer,
    published_bytes=_published_bytes,
    arriving_bytes=_bucket,
)
