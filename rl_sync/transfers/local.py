"""Local transfer: weights go from the trainer's devices to each explorer's in one process.

Trainer and explorers are threads. The trainer copies its parameters on its own devices and hands
over the copy; explorers place it on theirs. Neither takes part in the other's step, so neither
waits.
"""

from __future__ import annotations

import operator
import threading
import time
from typing import NamedTuple

import jax
from jaxtyping import Array, UInt32

from rl_sync.messages.events import VersionPublished
from rl_sync.messages.master_calls import Happened
from rl_sync.records.spans import SpanKind, SpanRecorder
from rl_sync.role_names import number_of
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.ends import Ends, EndSite, ExplorerEnd, Offering
from rl_sync.types import Params
from rl_sync.weights.copies import copied
from rl_sync.weights.deltas.retention import kept_versions
from rl_sync.weights.digest import digest, digest_words, to_text
from rl_sync.weights.ends_interface import (
    WeightsMismatchError,
    WeightsTimeoutError,
    WeightsTransferError,
    wanted_text,
)


class _Offer(NamedTuple):
    version: int
    params: Params
    digest: UInt32[Array, " 2"]


class LocalPublisher:
    """The trainer's end, from which the explorers' ends take versions.

    Args:
      explorers: number of pullers.
      keep: number of newest versions that are held for explorers that have not taken them.
      evaluated_every: see `kept_versions`.
    """

    def __init__(self, explorers: int, *, keep: int, evaluated_every: int = 0) -> None:
        if explorers < 1 or keep < 1:
            raise ValueError(
                f"A local publisher needs explorers and keep of at least 1; not"
                f" explorers={explorers}, keep={keep}."
            )
        self._keep, self._evaluated_every = keep, evaluated_every
        self._changed = threading.Condition()
        self._offers: list[_Offer] = []
        self._taken = [-1] * explorers
        self._closed = False
        self._lent: Params | None = None

    def lend(self, base: Params) -> None:
        """Shows explorers arrays that versions are merged into; call it before `publish`.

        The trainer reads them, too, and never overwrites them.
        """
        known = jax.tree.leaves(self._lent)
        same = map(operator.is_, known, jax.tree.leaves(base))
        if not known or not all(same):
            self._lent = base

    def lent(self) -> Params:
        """Returns the arrays that the trainer lends: the same object as long as they are."""
        assert self._lent is not None, "the trainer lends before it publishes"
        return self._lent

    def publish(self, version: int, params: Params) -> None:
        """Offers a copy of `params`, without waiting; see `ends_interface.Publisher`.

        Raises:
          ValueError: the version is not above the previous ones.
        """
        held = copied(params)  # The caller may donate its own arrays to the next step.
        offer = _Offer(version, held, digest_words(held))
        with self._changed:
            assert not self._closed, "publish() after close()"
            if version <= self.newest():
                raise ValueError(
                    f"Version {version} cannot follow version {self.newest()}: versions go up."
                )
            self._offers.append(offer)
            kept = self._kept(self._keep)
            self._offers = [one for one in self._offers if one.version in kept]
            self._changed.notify_all()

    def _kept(self, newest: int) -> list[int]:
        versions = (one.version for one in self._offers)
        return kept_versions(versions, newest, self._evaluated_every)

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """Returns the newest version offered, -1 if there is none; see `ends_interface.Puller`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._newest() >= at_least, timeout_secs)
            return self._newest()

    def _newest(self) -> int:
        return self._offers[-1].version if self._offers else -1

    def close(self) -> None:
        """Withdraws the offers and ends all waits."""
        with self._changed:
            self._offers, self._closed = [], True
            self._changed.notify_all()

    def take(
        self, explorer: int, exactly: int | None, at_least: int | None, timeout_secs: float
    ) -> _Offer:
        """Waits for a version on behalf of an explorer; frees versions that all explorers have
        taken.

        Raises:
          WeightsTimeoutError: no such version was published in time.
          WeightsTransferError: the version is gone, or the trainer is.
        """
        since = time.monotonic()
        with self._changed:
            while (offer := self._find(exactly, at_least)) is None:
                self._raise_if_vain(explorer, exactly)
                left = since + timeout_secs - time.monotonic()
                if left <= 0:
                    raise WeightsTimeoutError(
                        f"Explorer {explorer} waited {timeout_secs:.1f} s for"
                        f" {wanted_text(exactly, at_least)} of the weights; the newest is"
                        f" {self.newest()}. Either the trainer is slower than the deadline, or it"
                        " has stopped."
                    )
                self._changed.wait(left)
            self._taken[explorer - 1] = offer.version
            # The newest stays: an explorer that asks for any version gets it again.
            had, kept = min(self._taken), self._kept(1)
            self._offers = [o for o in self._offers if o.version > had or o.version in kept]
            return offer

    def _find(self, exactly: int | None, at_least: int | None) -> _Offer | None:
        if exactly is not None:
            return next((offer for offer in self._offers if offer.version == exactly), None)
        if self.newest() < (at_least or 0):
            return None
        return self._offers[-1]

    def _raise_if_vain(self, explorer: int, exactly: int | None) -> None:
        if self._closed:
            raise WeightsTransferError(
                f"The trainer has ended, so explorer {explorer} gets no more weights from it."
            )
        if exactly is not None and exactly < self.newest():
            there = ", ".join(str(offer.version) for offer in self._offers)
            raise WeightsTransferError(
                f"Explorer {explorer} asks for version {exactly}, which is gone: versions {there}"
                " are available, and older ones do not come back."
            )


class LocalPuller:
    """An explorer's end.

    Args:
      publisher: the trainer's end, in the same process.
      params: abstract params in the shardings to place them in.
      explorer: number of the explorer, from 1.
      check_digest: whether to compare the digest of the placed weights with the published one.
      spans: records the wait until a version is there and computed.

    Attributes:
      computed_secs: time at which the trainer's devices had computed the last version that was
        pulled, by the clock of the spans: it is offered before.
    """

    def __init__(
        self,
        publisher: LocalPublisher,
        params: Params,
        explorer: int,
        *,
        check_digest: bool = True,
        spans: SpanRecorder | None = None,
    ) -> None:
        self._publisher, self._explorer = publisher, explorer
        self._spans = spans or SpanRecorder(None, "")
        self.computed_secs = 0.0
        self._shardings = jax.tree.map(lambda leaf: leaf.sharding, params)
        self._check_digest = check_digest

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """Waits for a version, until it is computed, and places it; see `ends_interface.Puller`.

        On the trainer's own devices nothing is copied.

        Raises:
          WeightsTimeoutError: no such version was published in time.
          WeightsMismatchError: the placed weights differ from the published ones.
          WeightsTransferError: the version is gone, or the trainer has ended.
        """
        wanted_text(exactly, at_least)
        wait = {"reason": "synchronization", "for_whom": "the trainer"}
        with self._spans.span(SpanKind.WAIT, version=exactly or at_least, **wait):
            offer = self._publisher.take(self._explorer, exactly, at_least, timeout_secs)
            jax.block_until_ready(offer.params)
        self.computed_secs = self._spans.now()
        params = jax.device_put(offer.params, self._shardings)
        if self._check_digest:
            published, received = to_text(offer.digest), digest(params)
            if published != received:
                raise WeightsMismatchError(offer.version, published, received)
        return offer.version, params

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """See `ends_interface.Puller`."""
        return self._publisher.newest(at_least, timeout_secs)

    def close(self) -> None:
        """Does nothing: the puller holds nothing between pulls."""


class LocalTrainerEnd(Offering):
    """Hands versions over to threads of the same process.

    Args:
      site: the trainer's site.
      schedule: decides which side waits.
    """

    def __init__(self, site: EndSite, schedule: SyncSchedule):
        super().__init__(site, schedule, _shared(site))

    def publish(self, version: int, params: Params) -> None:
        """See `TrainerEnd`; returns without waiting."""
        super().publish(version, params)
        self._session.call(Happened(VersionPublished(version)))


def _explorer(site: EndSite) -> ExplorerEnd:
    number = number_of(site.session.role)
    puller = LocalPuller(
        _shared(site),
        site.abstract_params,
        number,
        check_digest=site.verify,
        spans=site.session.spans,
    )
    return ExplorerEnd(puller, began_secs=lambda: puller.computed_secs)


def _shared(site: EndSite) -> LocalPublisher:
    """Returns the publisher that all roles of the process share."""
    shared = site.resources.weights
    assert isinstance(shared, LocalPublisher), "roles that share a process share a publisher"
    return shared


ENDS = Ends(
    trainer=LocalTrainerEnd,
    explorer=_explorer,
    published_bytes=lambda version, schedule, deltas: version,
    arriving_bytes=lambda version, deltas: 0,
)
