"""Server transfer by differences: explorers fetch what changed since the version that they have.

Each process of the trainer encodes each version as its difference to the one before
(`rl_sync.weights.deltas`). An explorer names the version that it has verified, by its digest, and
gets the list of blocks that lead from there to the version that it wants. It applies them beside
what it has, and compares the digest before anybody sees the result. After any failure it asks for a
full copy. Explorers only call; those that others can reach hand on blocks.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax

from rl_sync.addresses import interface_towards
from rl_sync.cluster.rpc import CallHandlers, PeerLostError, RemoteError, RpcServer
from rl_sync.messages.weight_calls import AskNewest, AskRelays, HoldWeights, JoinRelays, ReportRelay
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.artifact_ends import (
    ArtifactTrainerEnd,
    PullStats,
    arriving_end,
    queue_rules,
)
from rl_sync.transfers.ends import EndSite, ExplorerEnd
from rl_sync.transfers.server_delta_publisher import (
    Acknowledge,
    AskArtifact,
    AskUpdate,
    DeltaPublisher,
    FetchBlocks,
    RpcSource,
    WeightsUpdate,
)
from rl_sync.transfers.server_puller import OfferPuller
from rl_sync.transfers.trainer_processes import TrainerContact, contact
from rl_sync.types import Params
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.cells import mesh_regions
from rl_sync.weights.deltas.applying import HeldWeights, applied, installed
from rl_sync.weights.deltas.artifact import FULL, ArtifactKey
from rl_sync.weights.deltas.block_cache import BlockCache, BlockSource, FetchReport, SourceBusyError
from rl_sync.weights.deltas.encoding import Bytes, EncodingError
from rl_sync.weights.ends_interface import WeightsMismatchError, WeightsTransferError
from rl_sync.weights.parts import Manifest

_THREADS = 64
_log = logging.getLogger(__name__)


class Relaying(NamedTuple):
    """An explorer's part in handing on blocks; by default, it has none.

    Attributes:
      relays: returns name and address of the explorers' processes to ask before the trainer.
      serve_at: interface at which other explorers can fetch blocks here; None to serve nobody.
      on_serving: called with the `host:port` where others can fetch blocks.
      on_report: see `BlockCache`.
    """

    relays: Callable[[], Sequence[tuple[str, str]]] = lambda: ()
    serve_at: str | None = None
    on_serving: Callable[[str], None] = lambda address: None
    on_report: Callable[[FetchReport], None] = lambda report: None


class DeltaPuller(OfferPuller[WeightsUpdate]):
    """Fetches what changed since the version that this process has verified.

    The digest is always compared: a version that fails is dropped, and a full copy takes its place.

    Args:
      params, trainer, agree: see `OfferPuller`.
      relaying: this process's part in handing on blocks.
      on_pulled: called with the costs of each pull that fetched something.

    Attributes:
      stats: what the last pull took.
    """

    def __init__(
        self,
        params: Params,
        trainer: TrainerContact,
        relaying: Relaying = Relaying(),  # noqa: B008
        *,
        on_pulled: Callable[[PullStats], None] = lambda stats: None,
        agree: Agree = alone,
    ) -> None:
        super().__init__(params, trainer, agree=agree)
        self._relays = relaying.relays
        self._held: HeldWeights | None = None
        self._path: Sequence[tuple[str, str]] = ()
        self._known: dict[tuple[str, str], RpcSource] = {}
        self._on_pulled = on_pulled
        self.stats: PullStats | None = None
        dense = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
        self._cache = BlockCache(
            trainer.reader,
            self._sources,
            lambda key: self._call(key.holder, AskArtifact(key)),
            most_bytes=dense if relaying.serve_at else 0,
            on_report=relaying.on_report,
        )
        self._server: RpcServer | None = None
        if (interface := relaying.serve_at) is not None:
            desk = CallHandlers(FetchBlocks.answered_by(self._hand_on))
            self._server = RpcServer(desk, 0, interface, _THREADS, trainer.secret)
            relaying.on_serving(f"{interface}:{self._server.port}")

    def close(self) -> None:
        """Tells the trainer, if it is still there, that this process will not ask again."""
        super().close()
        if self._server is not None:
            self._server.close()

    def _asking(
        self, holder: int, exactly: int | None, at_least: int | None, secs: float
    ) -> AskUpdate:
        held = self._held.version if self._held else None
        return AskUpdate(self._reader, held, exactly, at_least, secs)

    def _version_of(self, offer: WeightsUpdate) -> int:
        return offer.target.version

    def _connected(self, manifest: Manifest) -> None:
        if self._held is not None and manifest != self._held.arrivals.manifest:
            self._held = None  # Other parts, so another trainer: nothing of it can be a base.

    def _received(
        self, offers: Mapping[int, WeightsUpdate], exactly: int | None
    ) -> tuple[int, Params]:
        self.stats = None
        held = self._verified(offers, exactly)
        for holder in offers:
            self._call(holder, Acknowledge(self._reader, held.version.version))
        if self.stats is not None:
            self._on_pulled(self.stats)
        return held.version.version, held.params

    def _verified(self, updates: Mapping[int, WeightsUpdate], exactly: int | None) -> HeldWeights:
        """Returns the version that updates lead to; with a full copy, if they fail.

        The full copy may be of a newer version, unless one version alone will do.
        """
        target = next(iter(updates.values())).target
        try:
            self._held = self._applied(updates, refused=False)
            return self._held
        except (EncodingError, WeightsMismatchError) as error:
            if all(one.key.base == FULL for update in updates.values() for one in update.route):
                self._held = None
                raise
            if jax.process_count() > 1:  # Others would wait in the digest: all start anew.
                raise
            _log.warning("The difference to version %d is refused: %s", target.version, error)
        self._held = None
        deadline = time.monotonic() + self._trainer.stall_secs
        at_least = target.version if exactly is None else None
        again = self._offers(exactly, at_least, deadline)
        if not again:
            raise WeightsTransferError(
                f"The trainer no longer offers version {target.version}, of which {self._reader}"
                " needs a full copy."
            )
        self._held = self._applied(again, refused=True)
        return self._held

    def _applied(self, updates: Mapping[int, WeightsUpdate], *, refused: bool) -> HeldWeights:
        """Fetches and applies updates, and compares the digest; what is held does not change."""
        assert self._arrivals is not None
        target = next(iter(updates.values())).target
        if self._held is not None and self._held.version == target:
            return self._held
        began = time.monotonic()
        sizes, itemsizes = self._arrivals.manifest.sizes, self._arrivals.manifest.itemsizes
        parts: dict[int, Bytes] = {}
        self._path = self._relays()
        fetched = 0
        payloads = {}
        for holder, update in updates.items():
            payloads[holder] = self._cache.fetch(update.route, self._by_holder[holder])
            fetched += sum(map(len, payloads[holder].values()))
        received = time.monotonic()
        for holder, update in updates.items():
            mine = {part: sizes[part] for part in self._by_holder[holder]}
            held = self._held.parts if self._held else {}
            parts |= applied(update.route, held, mine, itemsizes, payloads[holder])
        new = installed(target, self._arrivals, parts)
        self._cache.release()
        self.stats = PullStats(
            fetched,
            sum(part.nbytes for part in parts.values()),
            received - began,
            time.monotonic() - received,
            any(one.key.base == FULL for update in updates.values() for one in update.route),
            refused,
        )
        return new

    def _disconnect(self) -> None:
        for client in self._clients:
            client.close()
        for source in self._known.values():
            source.close()
        self._known = {}
        super()._disconnect()

    def _sources(self, key: ArtifactKey) -> list[BlockSource]:
        """Returns the explorers to ask for blocks, and the trainer's process that made them."""
        trainer = (f"process {key.holder} of the trainer", self._addresses[key.holder])
        sources: list[BlockSource] = []
        for name, address in (*self._path, trainer):
            if (name, address) not in self._known:
                self._known[name, address] = RpcSource(
                    name, address, self._trainer.secret, self._trainer.stall_secs
                )
            sources.append(self._known[name, address])
        return sources

    def _hand_on(self, call: FetchBlocks) -> list[bytes] | None:
        try:
            return [bytes(payload) for payload in self._cache.get(call.names, call.via)]
        except SourceBusyError:
            return None


class DeltaTrainerEnd(ArtifactTrainerEnd):
    """Encodes versions in the background, and offers them; explorers fetch them at any time.

    Args:
      site: the trainer's site.
      schedule: decides how many versions are offered, and whether every version is needed.
    """

    def __init__(self, site: EndSite, schedule: SyncSchedule):
        session = site.session
        publisher = DeltaPublisher(
            site.abstract_params,
            host=interface_towards(site.master_address),
            secret=session.secret,
            chain=session.agree("the chain", lambda: secrets.token_hex(8)),
            expected=mesh_regions(site.abstract_params_on(session.settings.explorer_layout)),
            keep=schedule.versions_in_use,
            evaluated_every=session.settings.explorers_evaluate_every,
            on_added=lambda version, added: self._added(version, added, added.encode_secs),
            rules=queue_rules(session, schedule),
        )
        super().__init__(site, schedule, publisher)
        session.call_alone(HoldWeights(jax.process_index(), publisher.address))


def explorer_end(site: EndSite) -> ExplorerEnd:
    """Makes an explorer's end, which fetches what changed."""
    session, settings = site.session, site.session.settings
    trainer = contact(session, lambda version, secs: session.call_alone(AskNewest(version, secs)))

    def report(report: FetchReport) -> None:
        with contextlib.suppress(PeerLostError, RemoteError):
            session.call_alone(
                ReportRelay(report.source, report.nbytes, report.secs, report.failure)
            )

    relaying = Relaying()
    if 0 < settings.sync.fanout < settings.explorers:
        relaying = Relaying(
            lambda: session.call_alone(AskRelays(trainer.reader)),
            interface_towards(site.master_address),
            lambda address: session.call_alone(JoinRelays(trainer.reader, address)),
            report,
        )
    puller = DeltaPuller(
        site.abstract_params,
        trainer,
        relaying,
        on_pulled=lambda stats: session.spans.count(stats.counts),
        agree=session.agree,
    )
    return arriving_end(site, puller)
