"""Collective transfer: shard to shard, from the trainer to one explorer at a time.

Trainer and explorers are processes of one cluster (`rl_sync.weights.cluster`). The processes of
both sides enter a transfer together (`rl_sync.weights.link`), and agree on it beforehand: explorers
send requests to the master's meeting point (`rl_sync.weights.rendezvous`), and the trainer grants
them. They enter the transfer in the thread that calls `publish`, `serve` or `pull`. Only this
thread may dispatch collectives in its process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

import jax
from jaxtyping import Array, UInt32

from rl_sync.cluster.session import RunStoppedError, Session
from rl_sync.cluster.topology import layout_of
from rl_sync.messages.call import request_number
from rl_sync.messages.events import VersionPublished
from rl_sync.messages.master_calls import Happened
from rl_sync.messages.weight_calls import (
    AskNewest,
    AskWaiting,
    AskWeights,
    AwaitGrant,
    Grant,
    GrantWeights,
    Request,
    Withdraw,
)
from rl_sync.records.spans import SpanKind
from rl_sync.role_names import TRAINER, explorer_name, number_of
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.ends import Ends, EndSite, ExplorerEnd
from rl_sync.transfers.trainer_processes import check_training
from rl_sync.types import Params
from rl_sync.weights.copies import copied
from rl_sync.weights.digest import digest, digest_words, to_text
from rl_sync.weights.ends_interface import (
    WeightsMismatchError,
    WeightsTimeoutError,
    WeightsTransferError,
    wanted_text,
)
from rl_sync.weights.link import BUCKET_BYTES, Link

_POLL_SECS = 1.0
_SLICE_SECS = 0.5
_PAUSE_SECS = 0.01


class _WaitingVersion(NamedTuple):
    version: int
    params: Params
    digest: UInt32[Array, " 2"]

    @property
    def text(self) -> str:
        """The digest as text."""
        return to_text(self.digest)


class CollectivePublisher:
    """The trainer's end; see `TrainerEnd`.

    Args:
      session: the trainer's session.
      links: link to each explorer, by the explorer's number; at least one.
      kind: span kind of transfers.
      meet: whether `publish` waits until each explorer has received the version. Use it for exact
        pulls, and then publish only versions that explorers will use. Otherwise explorers receive
        the newest version when the trainer calls `serve`, from a copy, so that the trainer may
        donate its parameters.
      timeout_secs: deadline for explorers to come to `publish`.
    """

    def __init__(
        self,
        session: Session,
        links: Mapping[int, Link],
        *,
        kind: SpanKind,
        meet: bool,
        timeout_secs: float,
    ) -> None:
        assert links, "a collective publisher without explorers"
        self._session, self._links, self._kind = session, dict(links), kind
        self._meet, self._timeout_secs = meet, timeout_secs
        self._held: _WaitingVersion | None = None
        self._granted_secs: float | None = None
        # Span of a wait, from the time when no explorer is ready to the first grant.
        self._waiting: contextlib.ExitStack | None = None

    def awaits(self, version: int) -> bool:
        """Returns True: an explorer that is granted early would wait inside the transfer."""
        return True

    def publish(self, version: int, params: Params) -> None:
        """Holds `version` for the explorers; with `meet`, sends it to each of them.

        Raises:
          RunStoppedError: the run is being stopped.
          ValueError: `params` does not match the plan.
          WeightsTimeoutError: an explorer did not come in time; the message names it.
          WeightsTransferError: a transfer broke.
        """
        self._session.check()
        started = self._session.spans.now()
        # The old version is freed first. With `meet` no copy is needed: the transfer ends before
        # the caller can donate its parameters.
        self._held = None
        self._held = self._waiting_version(version, params)
        self._session.call(Happened(VersionPublished(version)))
        self._granted_secs = None
        if self._meet:
            try:
                self._give_to_all(self._held)
            finally:
                self._held = None
                self._end_wait()
        self._record(self._granted_secs or started, version=version)

    def serve(self) -> None:
        """Sends the newest version to each explorer that waits for it.

        Raises:
          WeightsTransferError: a transfer broke.
        """
        if self._held is None:
            return
        self._granted_secs = None
        served = self._give(self._held, 0.0)
        if self._granted_secs is not None:
            self._record(self._granted_secs, version=self._held.version, explorers=served)

    def close(self) -> None:
        """Frees the held version; explorers that still wait reach their deadlines."""
        self._held = None

    def _waiting_version(self, version: int, params: Params) -> _WaitingVersion:
        held = params if self._meet else copied(params)
        return _WaitingVersion(version, held, digest_words(params))

    def _give_to_all(self, held: _WaitingVersion) -> None:
        start, missing = self._now(), set(self._links)
        while missing:
            waited = self._now() - start
            if waited > self._timeout_secs:
                raise WeightsTimeoutError(self._missing_text(held.version, missing, waited))
            served = self._give(held, min(_SLICE_SECS, self._timeout_secs - waited))
            missing -= set(served)
            if missing and not served:
                self._session.clock.sleep(
                    _PAUSE_SECS
                )  # Those that are ready may wait for later versions.

    def _now(self) -> float:
        return self._session.agree("the time", self._session.clock.now)

    def _give(self, held: _WaitingVersion, wait_secs: float) -> list[int]:
        """Sends a version to the explorers that are ready for it; waits for the first one."""
        served = []
        for request in self._session.agree("ready explorers", lambda: self._ready(wait_secs)):
            if not request.accepts(held.version):
                continue
            grant = Grant(held.version, held.text)
            if not self._session.call(GrantWeights(request, grant)):
                continue  # The explorer has withdrawn.
            self._end_wait()
            self._granted_secs = self._granted_secs or self._session.spans.now()
            try:
                self._links[request.explorer].send(held.params)
            except jax.errors.JaxRuntimeError as error:
                raise WeightsTransferError(
                    f"Sending version {held.version} to explorer {request.explorer} broke; its"
                    f" process has probably died: {error}"
                ) from error
            served.append(request.explorer)
        return served

    def _ready(self, wait_secs: float) -> list[Request]:
        self._session.check()
        requests = self._session.call(AskWaiting(0.0))
        if requests or not wait_secs:
            return requests
        if self._waiting is None:
            self._waiting = contextlib.ExitStack()
            wait = {"reason": "synchronization", "for_whom": "the explorers"}
            self._waiting.enter_context(self._session.spans.span(SpanKind.WAIT, **wait))
        return self._session.call(AskWaiting(wait_secs))

    def _end_wait(self) -> None:
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None

    def _record(self, started: float, **attributes: object) -> None:
        now = self._session.spans.now()
        self._session.spans.record(self._kind, started, now, **attributes)

    def _missing_text(self, version: int, missing: set[int], waited_secs: float) -> str:
        others = [
            f"explorer {request.explorer} asks for {wanted_text(request.exactly, request.at_least)}"
            for request in self._session.call(AskWaiting(0.0))
        ]
        return (
            f"The trainer waited {waited_secs:.1f} s for explorer"
            f" {', '.join(map(str, sorted(missing)))} to come for version {version}"
            f" ({len(self._links) - len(missing)} of {len(self._links)} came). "
            + (f"Meanwhile {'; '.join(others)}." if others else "Nobody asks for any version.")
        )


class CollectivePuller:
    """An explorer's end; see `rl_sync.weights.ends_interface.Puller`.

    Args:
      session: the explorer's session.
      link: link from the trainer.
      explorer: number of this explorer.
      check_digest: whether to compare the digest of the received weights with the published one.

      Attributes:
        granted_secs: time of the last grant, by the clock of the session's spans.
    """

    def __init__(
        self, session: Session, link: Link, explorer: int, *, check_digest: bool = True
    ) -> None:
        self._session, self._link, self._explorer = session, link, explorer
        self._check_digest = check_digest
        self.granted_secs = 0.0

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """Waits for a version and receives it.

        The deadline applies to the trainer's grant. The transfer itself cannot be interrupted.

        Raises:
          RunStoppedError: the run is being stopped, or the trainer has made its last step.
          WeightsTimeoutError: the trainer granted no such version in time.
          WeightsMismatchError: the received weights differ from the published ones.
          WeightsTransferError: the transfer broke.
        """
        wanted = wanted_text(exactly, at_least)
        grant = self._session.agree("grant", lambda: self._grant(exactly, at_least, timeout_secs))
        if grant is None:
            # A trainer that has finished serves nobody.
            self._session.agree("whether it trains", lambda: check_training(self._session))
            raise WeightsTimeoutError(
                f"Explorer {self._explorer} waited {timeout_secs:.1f} s for {wanted} of the"
                f" weights; the newest is {self.newest()}. Either the trainer is slower than the"
                " deadline, or it has stopped."
            )
        try:
            params = self._link.receive()
        except jax.errors.JaxRuntimeError as error:
            raise WeightsTransferError(
                f"Receiving version {grant.version} broke; the trainer's process has probably"
                f" died: {error}"
            ) from error
        if self._check_digest and (received := digest(params)) != grant.digest:
            raise WeightsMismatchError(grant.version, grant.digest, received)
        return grant.version, params

    def _grant(
        self, exactly: int | None, at_least: int | None, timeout_secs: float
    ) -> Grant | None:
        """Requests a version and waits for the trainer's grant; None if there is none in time."""
        call = self._session.call
        clock = self._session.clock
        deadline = clock.now() + timeout_secs
        ticket = call(AskWeights(self._explorer, exactly, at_least, request_number()))
        wait = {"reason": "synchronization", "for_whom": "the trainer"}
        with self._session.spans.span(SpanKind.WAIT, version=exactly or at_least, **wait):
            grant, stopped = None, None
            while not (grant or stopped) and (left := deadline - clock.now()) > 0:
                grant = call(AwaitGrant(ticket, min(left, _POLL_SECS)))
                try:
                    self._session.check()
                except RunStoppedError as error:
                    stopped = error
            # A grant that came before the withdrawal must be followed, because the trainer enters.
            grant = grant or call(Withdraw(ticket))
        self.granted_secs = self._session.spans.now()
        if stopped is not None and grant is None:
            raise stopped
        return grant

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """See `Puller`."""
        return self._session.call(AskNewest(at_least, timeout_secs))

    def close(self) -> None:
        """Does nothing: the puller holds nothing between pulls."""


def _trainer(site: EndSite, schedule: SyncSchedule) -> CollectivePublisher:
    settings = site.session.settings
    return CollectivePublisher(
        site.session,
        {number: _link(site, number) for number in range(1, settings.explorers + 1)},
        kind=site.kind,
        meet=schedule.pull == "exact",
        timeout_secs=settings.launch.wait_secs,
    )


def _explorer(site: EndSite) -> ExplorerEnd:
    number = number_of(site.session.role)
    puller = CollectivePuller(site.session, _link(site, number), number, check_digest=site.verify)
    return ExplorerEnd(puller, lambda: puller.granted_secs)


def _link(site: EndSite, explorer: int) -> Link:
    """Makes the link from the trainer to an explorer; both are in one cluster."""
    settings = site.session.settings
    there, here = (
        site.abstract_params_on(layout_of(settings, role))
        for role in (TRAINER, explorer_name(explorer))
    )
    return Link(there, here)


def _bucket(version: int) -> int:
    """Returns the bytes that a transfer sends and receives at once."""
    return min(version, BUCKET_BYTES)


ENDS = Ends(
    trainer=_trainer,
    explorer=_explorer,
    published_bytes=lambda version, schedule, deltas: (
        _bucket(version) + (schedule.pull == "latest") * version
    ),
    arriving_bytes=lambda version, deltas: _bucket(version),
)
