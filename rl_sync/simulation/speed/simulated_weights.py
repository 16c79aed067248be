"""Weights that travel in a simulated run: together, or in the background."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import NamedTuple, Protocol

from rl_sync.messages.events import VersionPublished
from rl_sync.records.spans import Span, SpanKind
from rl_sync.role_names import TRAINER
from rl_sync.simulation.event_queue import Action
from rl_sync.simulation.speed.simulated_site import SimulatedSite

Received = Callable[[int], None]
"""A function that is called with the version that an explorer has received."""


class SimulatedWeights(Protocol):
    """A transfer of a simulated run."""

    def publish(self, version: int, then: Action) -> None:
        """Publishes a version; then the trainer goes on."""

    def serve(self, then: Action) -> None:
        """Lets the trainer serve explorers that wait for it, between two of its steps."""

    def fetch(self, explorer: int, version: int, exactly: bool, then: Received) -> None:
        """Gets a version for an explorer, or a newer one if it is allowed."""

    def newest(self, explorer: int) -> int:
        """Returns the newest version that an explorer can have, -1 for none."""

    def at_hand(self, explorer: int) -> int | None:
        """Returns the newest version that an explorer has already; None if it fetches on demand."""


def weights_of(site: SimulatedSite) -> SimulatedWeights:
    """Returns the transfer of a run."""
    return JointWeights(site) if site.plan.is_joint else WeightsBeside(site)


class _AskedVersion(NamedTuple):
    explorer: int
    version: int
    since_secs: float
    then: Received


class JointWeights:
    """Trainer and explorers take part in each transfer; one explorer after the other.

    Under exact pulls the trainer waits until each explorer has received a version. Under latest
    pulls it serves explorers between two steps, and while it waits for experiences.
    """

    def __init__(self, site: SimulatedSite) -> None:
        self._site = site
        self._version = -1
        self._asked: collections.deque[_AskedVersion] = collections.deque()
        self._left, self._published_secs = 0, 0.0
        self._granted_secs: float | None = None
        self._then: Action | None = None
        self._is_busy = False

    def publish(self, version: int, then: Action) -> None:
        """See `SimulatedWeights`."""
        site = self._site
        self._version, self._published_secs = version, site.now
        site.tell(VersionPublished(version))
        if site.plan.meets:
            self._left, self._then = site.plan.master.explorers, then
            self._granted_secs = None
            self._give()
        else:
            self.serve(then)

    def serve(self, then: Action) -> None:
        """See `SimulatedWeights`."""
        if self._site.plan.meets or not self._asked:
            then()
            return
        self._then, self._left = then, len(self._asked)
        self._granted_secs, self._published_secs = None, self._site.now
        self._give()

    def fetch(self, explorer: int, version: int, exactly: bool, then: Received) -> None:
        """See `SimulatedWeights`."""
        del exactly
        self._asked.append(_AskedVersion(explorer, version, self._site.now, then))
        if self._left:
            self._give()
        else:
            self._site.changed()

    def newest(self, explorer: int) -> int:
        """See `SimulatedWeights`."""
        del explorer
        return self._version

    def at_hand(self, explorer: int) -> int | None:
        """See `SimulatedWeights`."""
        del explorer
        return None

    def _give(self) -> None:
        """Begins the transfer to the next explorer that waits for this version."""
        ready = [one for one in self._asked if one.version <= self._version]
        if self._is_busy or not ready or not self._left:
            return
        asked, site = ready[0], self._site
        self._asked.remove(asked)
        self._is_busy, began = True, site.now
        self._granted_secs = began if self._granted_secs is None else self._granted_secs
        wait = {"reason": "synchronization", "version": self._version}
        site.record(site.name(asked.explorer), SpanKind.WAIT, asked.since_secs, **wait)
        pull = site.work.transfers[site.plan.transfer].pull
        secs = site.draw(pull, "pull", asked.explorer, self._version)
        site.queue.after(secs, lambda: self._given(asked, began))

    def _given(self, asked: _AskedVersion, began: float) -> None:
        site, version = self._site, self._version
        site.record(site.name(asked.explorer), site.sync_kind, began, version=version)
        self._is_busy = False
        self._left -= 1
        if not self._left:
            assert self._granted_secs is not None
            granted, then = self._granted_secs, self._then
            if granted > self._published_secs:
                about = {"reason": "synchronization", "version": version}
                wait = Span(TRAINER, SpanKind.WAIT, self._published_secs, granted, about)
                site.spans.append(wait)
            site.record(TRAINER, site.sync_kind, granted, version=version)
            assert then is not None
            self._then = None
            then()
        asked.then(version)
        self._give()


class WeightsBeside:
    """The trainer makes versions available in the background, and explorers pull them.

    Under latest pulls a version that is not under way yet is replaced by a newer one. With
    prefetching each explorer pulls newer versions while it generates.
    """

    def __init__(self, site: SimulatedSite) -> None:
        self._site = site
        self._times = site.work.transfers[site.plan.transfer]
        self._queue: list[int] = []
        self._is_publishing = False
        self._newest, self._pulling = -1, 0
        self._asked: list[_AskedVersion] = []
        explorers = range(1, site.plan.master.explorers + 1)
        self._arrived = dict.fromkeys(explorers, -1)
        self._fetching: set[int] = set()

    def publish(self, version: int, then: Action) -> None:
        """See `SimulatedWeights`."""
        if self._site.plan.schedule.pull == "latest":
            self._queue.clear()
        self._queue.append(version)
        self._publish_next()
        then()

    def serve(self, then: Action) -> None:
        """See `SimulatedWeights`."""
        then()

    def fetch(self, explorer: int, version: int, exactly: bool, then: Received) -> None:
        """See `SimulatedWeights`."""
        asked = _AskedVersion(explorer, version, self._site.now, then)
        if self.newest(explorer) < version:
            self._asked.append(asked)
        elif self._site.plan.prefetches:
            then(self._arrived[explorer])
        else:
            self._pull(asked, version if exactly else self._newest)

    def newest(self, explorer: int) -> int:
        """See `SimulatedWeights`."""
        return self._arrived[explorer] if self._site.plan.prefetches else self._newest

    def at_hand(self, explorer: int) -> int | None:
        """See `SimulatedWeights`."""
        return self._arrived[explorer] if self._site.plan.prefetches else None

    def _publish_next(self) -> None:
        if self._is_publishing or not self._queue:
            return
        version, site = self._queue.pop(0), self._site
        self._is_publishing, began = True, site.now

        def done() -> None:
            site.record(TRAINER, site.sync_kind, began, version=version, background=True)
            self._is_publishing = False
            self._newest = version
            site.tell(VersionPublished(version))
            self._serve_asked()
            if site.plan.prefetches:
                for explorer in self._arrived:
                    self._prefetch(explorer)
            self._publish_next()

        site.queue.after(site.draw(self._times.publish, "publish", version), done)

    def _serve_asked(self) -> None:
        """Ends the waits of explorers whose version is there now."""
        site = self._site
        ready = [one for one in self._asked if one.version <= self.newest(one.explorer)]
        self._asked = [one for one in self._asked if one not in ready]
        exact = site.plan.schedule.pull == "exact"
        for one in ready:
            wait = {"reason": "synchronization", "version": one.version}
            site.record(site.name(one.explorer), SpanKind.WAIT, one.since_secs, **wait)
            if site.plan.prefetches:
                one.then(self._arrived[one.explorer])
            else:
                self._pull(one, one.version if exact else self._newest)

    def _pull(self, asked: _AskedVersion, version: int, background: bool = False) -> None:
        site, began = self._site, self._site.now
        self._pulling += 1
        secs = site.draw(self._times.pull, "pull", asked.explorer, version)
        secs *= self._pulling if self._times.shares_link else 1

        def done() -> None:
            self._pulling -= 1
            more = {"background": True} if background else {}
            site.record(site.name(asked.explorer), site.sync_kind, began, version=version, **more)
            asked.then(version)

        site.queue.after(secs, done)

    def _prefetch(self, explorer: int) -> None:
        if explorer in self._fetching or self._arrived[explorer] >= self._newest:
            return
        self._fetching.add(explorer)

        def arrived(version: int) -> None:
            self._fetching.discard(explorer)
            self._arrived[explorer] = version
            self._site.changed()
            self._serve_asked()
            self._prefetch(explorer)

        asked = _AskedVersion(explorer, self._newest, self._site.now, arrived)
        self._pull(asked, self._newest, background=True)
