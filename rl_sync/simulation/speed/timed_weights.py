"""Weights that travel in a simulated run: by the real collective ends, or in the background."""

from __future__ import annotations

from typing import Any, Protocol

from rl_sync.messages.events import VersionPublished
from rl_sync.messages.master_calls import Happened
from rl_sync.simulation.speed.simulated_site import ComputedVersion, SimulatedSite, TimedSession
from rl_sync.simulation.stand_ins import NumberedVersion
from rl_sync.transfers.collective import CollectivePublisher, CollectivePuller


class TimedPuller(Protocol):
    """An explorer's end of a transfer; see `Puller` and `ExplorerEnd`."""

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """See `Puller`."""

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Any]:
        """See `Puller`."""

    def at_hand(self) -> int | None:
        """Returns the newest version that is here already; None if they come on demand."""

    def began_secs(self) -> float:
        """Returns the time when the weights of the last pull could begin to travel."""


def puller_of(site: SimulatedSite, session: TimedSession, number: int) -> TimedPuller:
    """Returns the end of an explorer."""
    if site.plan.is_joint:
        return _JointPuller(session, site.links[number], number)
    return (_FetchingPuller if site.plan.prefetches else _PullerBeside)(site, session, number)


class JointEnd(CollectivePublisher):
    """The trainer's end of collective transfers."""

    def _waiting_version(self, version: int, params: ComputedVersion) -> Any:
        """Waits until the weights are computed."""
        params.computed.result()
        return NumberedVersion(version, params, str(version))


class _JointPuller(CollectivePuller):
    """An explorer's end of collective transfers."""

    def __init__(self, session: TimedSession, link: Any, number: int) -> None:
        super().__init__(session, link, number, check_digest=False)

    def at_hand(self) -> None:
        """See `TimedPuller`."""

    def began_secs(self) -> float:
        """See `TimedPuller`."""
        return self.granted_secs


class EndBeside:
    """The trainer makes versions available in the background; see `TrainerEnd`.

    Under latest pulls a version that is not under way yet is replaced by a newer one.
    """

    def __init__(self, site: SimulatedSite, session: TimedSession) -> None:
        self._site, self._session = site, session
        self._queue: list[ComputedVersion] = []
        self._is_publishing = False

    def awaits(self, version: int) -> bool:
        """The next step is taken meanwhile."""
        del version
        return False

    def publish(self, version: int, params: ComputedVersion) -> None:
        """See `TrainerEnd`."""
        if self._site.plan.schedule.pull == "latest":
            self._queue.clear()
        self._queue.append(params)
        if not self._is_publishing:
            self._is_publishing = True
            self._site.clock.thread(self._work, "publisher")

    def _work(self) -> None:
        site, session = self._site, self._session
        times = site.work.transfers[site.plan.transfer]
        while self._queue:
            version, computed = self._queue.pop(0)
            computed.result()
            began = site.queue.now_secs
            site.clock.sleep(site.draw(times.publish, "publish", version))
            about = {"version": version, "background": True}
            session.spans.record(site.sync_kind, began, site.queue.now_secs, **about)
            session.call(Happened(VersionPublished(version)))
        self._is_publishing = False

    def serve(self) -> None:
        """Needs no call to serve."""

    def close(self) -> None:
        """Goes on serving."""


class _PullerBeside:
    """An explorer's end, which pulls on demand; see `TimedPuller`."""

    def __init__(self, site: SimulatedSite, session: TimedSession, number: int) -> None:
        self._site, self._session, self._number = site, session, number

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        if timeout_secs:
            self._site.wait_for(lambda: self._site.newest >= at_least)
        return self._site.newest

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, None]:
        del at_least, timeout_secs
        return self._pulled(self._site.newest if exactly is None else exactly), None

    def at_hand(self) -> int | None:
        return None

    def began_secs(self) -> float:
        return 0.0

    def _pulled(self, version: int) -> int:
        """Waits until a version has travelled; those that travel at once may share the link."""
        site = self._site
        times = site.work.transfers[site.plan.transfer]
        secs = site.draw(times.pull, "pull", self._number, version)
        site.pulling += 1
        site.clock.sleep(secs * (site.pulling if times.shares_link else 1))
        site.pulling -= 1
        return version


class _FetchingPuller(_PullerBeside):
    """An explorer's end, which pulls newer versions while the explorer generates."""

    def __init__(self, site: SimulatedSite, session: TimedSession, number: int) -> None:
        super().__init__(site, session, number)
        self._arrived = -1
        site.clock.thread(self._fetch, "fetcher")

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        if timeout_secs:
            self._site.wait_for(lambda: self._arrived >= at_least)
        return self._arrived

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, None]:
        del exactly, at_least, timeout_secs
        return self._arrived, None

    def at_hand(self) -> int | None:
        return self._arrived

    def _fetch(self) -> None:
        site, spans = self._site, self._session.spans
        while True:
            site.wait_for(lambda: site.newest > self._arrived)
            began = spans.now()
            self._arrived = self._pulled(site.newest)
            about = {"version": self._arrived, "background": True}
            spans.record(site.sync_kind, began, spans.now(), **about)
            site.changed()


def end_of(site: SimulatedSite, session: TimedSession) -> Any:
    """Returns the trainer's end."""
    if not site.plan.is_joint:
        return EndBeside(site, session)
    return JointEnd(
        session,
        site.links,
        kind=site.sync_kind,
        meet=site.plan.schedule.pull == "exact",
        timeout_secs=float("inf"),
    )
