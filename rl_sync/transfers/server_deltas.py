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
from typing import NamedTuple, TypeVar

import jax

from rl_sync.addresses import interface_towards
from rl_sync.cluster.rpc import CallHandlers, PeerLostError, RemoteError, RpcClient, RpcServer
from rl_sync.messages.call import Call
from rl_sync.messages.events import VersionPublished
from rl_sync.messages.master_calls import Happened
from rl_sync.messages.weight_calls import AskNewest, AskRelays, HoldWeights, JoinRelays, ReportRelay
from rl_sync.role_names import TRAINER
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.delta_arrival import PullStats, arriving_end
from rl_sync.transfers.ends import EndSite, ExplorerEnd, Offering
from rl_sync.transfers.server_delta_calls import (
    Acknowledge,
    AskArtifact,
    AskUpdate,
    FetchBlocks,
    RpcSource,
    WeightsUpdate,
)
from rl_sync.transfers.server_delta_publisher import DeltaPublisher
from rl_sync.transfers.server_publisher import AskManifest, CloseLine
from rl_sync.transfers.trainer_processes import await_holders, check_training
from rl_sync.types import Params
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.cells import mesh_regions
from rl_sync.weights.deltas.applying import applied
from rl_sync.weights.deltas.artifact import (
    FULL,
    ArtifactKey,
    HeldVersion,
)
from rl_sync.weights.deltas.block_cache import (
    BlockCache,
    BlockSource,
    FetchReport,
    SourceBusyError,
)
from rl_sync.weights.deltas.encoding import Bytes, EncodingError
from rl_sync.weights.deltas.history import AddedVersion
from rl_sync.weights.deltas.part_bytes import (
    itemsizes_of,
    on_devices,
    sizes_of,
)
from rl_sync.weights.digest import digest
from rl_sync.weights.ends_interface import (
    WeightsMismatchError,
    WeightsTimeoutError,
    WeightsTransferError,
    wanted_text,
)
from rl_sync.weights.parts import (
    Arrivals,
    Manifest,
    first_difference,
    leaves_of,
)

_SLICE_SECS = 1.0
_THREADS = 64
_log = logging.getLogger(__name__)

R = TypeVar("R")


class _Held(NamedTuple):
    version: HeldVersion
    parts: Mapping[int, Bytes]
    params: Params


class DeltaPuller:
    """Fetches what changed since the version that this process has verified.

    Each process of an explorer has a puller, for the shards of its own devices. All of them call
    `pull` with the same arguments. The digest is always compared: a version that fails is dropped,
    and a full copy takes its place.

    Args:
      params: abstract params in the shardings to pull into.
      reader: name that no other running puller has.
      find: finds the publishers of the trainer's processes: their addresses, in order. Called again
        after a failure.
      newest: see `ServerPuller`.
      secret: the run's secret.
      call_secs: maximum time that a publisher takes to answer, beyond a wait that it is asked for.
      relays: returns name and address of the explorers' processes to ask before the trainer.
      serve_at: interface at which other explorers can fetch blocks here; None to serve nobody.
      on_serving: called with the `host:port` where others can fetch blocks.
      on_report: see `BlockCache`.
      agree: lets the explorer's processes agree; the first of them chooses the version.
      stall_secs: maximum time for an answer with blocks.
      on_lost: called when a pull breaks; it may raise the reason, in place of the pull's error.

    Attributes:
      stats: what the last pull took.
    """

    def __init__(
        self,
        params: Params,
        reader: str,
        find: Callable[[], Sequence[str]],
        newest: Callable[[int, float], int],
        *,
        secret: str,
        call_secs: float,
        relays: Callable[[], Sequence[tuple[str, str]]] = lambda: (),
        serve_at: str | None = None,
        on_serving: Callable[[str], None] = lambda address: None,
        on_report: Callable[[FetchReport], None] = lambda report: None,
        agree: Agree = alone,
        stall_secs: float = 60.0,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._params, self._reader = params, reader
        self._find, self._newest, self._secret = find, newest, secret
        self._call_secs, self._stall_secs = call_secs, stall_secs
        self._relays, self._on_report = relays, on_report
        self._agree, self._on_lost = agree, on_lost
        self._clients: list[RpcClient] = []
        self._addresses: Sequence[str] = ()
        self._manifest: Manifest | None = None
        self._arrivals: Arrivals | None = None
        self._by_holder: dict[int, list[int]] = {}
        self._held: _Held | None = None
        self._path: Sequence[tuple[str, str]] = ()
        self._known: dict[tuple[str, str], RpcSource] = {}
        self.stats: PullStats | None = None
        dense = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
        self._cache = BlockCache(
            reader,
            self._sources,
            lambda key: self._call(key.holder, AskArtifact(key)),
            most_bytes=dense if serve_at else 0,
            on_report=on_report,
        )
        self._server: RpcServer | None = None
        if serve_at is not None:
            desk = CallHandlers(FetchBlocks.answered_by(self._hand_on))
            self._server = RpcServer(desk, 0, serve_at, _THREADS, secret)
            on_serving(f"{serve_at}:{self._server.port}")

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """Waits for a version, and fetches what it lacks; see `ends_interface.Puller`.

        The deadline applies to the offer; a transfer that makes progress may take longer.

        Raises:
          WeightsTimeoutError: no such version was offered in time.
          WeightsMismatchError: a full copy, too, differs from the published weights.
          WeightsTransferError: the trainer is gone, or is stuck.
          ValueError: the trainer offers another model than `params`.
        """
        wanted = wanted_text(exactly, at_least)
        self.stats = None
        deadline = time.monotonic() + timeout_secs
        try:
            while not (updates := self._updates(exactly, at_least, deadline)):
                if self._agree("late", lambda: time.monotonic() >= deadline):
                    raise WeightsTimeoutError(
                        f"{self._reader} waited {timeout_secs:.1f} s for {wanted} of the weights;"
                        f" the newest that the trainer offers is {self.newest()}. Either the"
                        " trainer is slower than the deadline, or it has stopped."
                    )
            held = self._verified(updates, exactly)
            for holder in self._by_holder:
                self._call(holder, Acknowledge(self._reader, held.version.version))
        except (ConnectionError, PeerLostError, RemoteError, WeightsTransferError) as error:
            self._disconnect()
            self._on_lost()
            if isinstance(error, WeightsTransferError):
                raise
            raise WeightsTransferError(
                f"{self._reader} wanted {wanted} of the weights, but the trainer does not answer:"
                f" {error}"
            ) from error
        return held.version.version, held.params

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """See `ends_interface.Puller`."""
        return self._newest(at_least, timeout_secs)

    def close(self) -> None:
        """Tells the trainer, if it is still there, that this process will not ask again."""
        for holder in self._by_holder:
            try:
                self._call(holder, CloseLine(self._reader))
            except (PeerLostError, RemoteError):
                _log.info("The trainer had left before this explorer did.")
        self._disconnect()
        if self._server is not None:
            self._server.close()

    def _verified(self, updates: Mapping[int, WeightsUpdate], exactly: int | None) -> _Held:
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
        deadline = time.monotonic() + self._stall_secs
        at_least = target.version if exactly is None else None
        again = self._updates(exactly, at_least, deadline)
        if again is None:
            raise WeightsTransferError(
                f"The trainer no longer offers version {target.version}, of which {self._reader}"
                " needs a full copy."
            )
        self._held = self._applied(again, refused=True)
        return self._held

    def _applied(self, updates: Mapping[int, WeightsUpdate], *, refused: bool) -> _Held:
        """Fetches and applies updates, and compares the digest; what is held does not change."""

        assert self._manifest is not None
        assert self._arrivals is not None
        target = next(iter(updates.values())).target
        if self._held is not None and self._held.version == target:
            return self._held
        began = time.monotonic()
        sizes, itemsizes = sizes_of(self._manifest), itemsizes_of(self._manifest)
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
        params = on_devices(parts, self._params, self._arrivals)
        found = digest(params)
        if found != target.digest:
            raise WeightsMismatchError(target.version, target.digest, found)
        self._cache.release()
        self.stats = PullStats(
            fetched,
            sum(part.nbytes for part in parts.values()),
            received - began,
            time.monotonic() - received,
            any(one.key.base == FULL for update in updates.values() for one in update.route),
            refused,
        )
        return _Held(target, parts, params)

    def _call(self, holder: int, call: Call[R], waits_secs: float = 0.0) -> R:
        return self._clients[holder].call(call, self._call_secs + waits_secs)

    def _updates(
        self, exactly: int | None, at_least: int | None, deadline: float
    ) -> dict[int, WeightsUpdate] | None:
        """Asks each of the trainer's processes for an update; None if there is none yet."""
        mine: dict[int, WeightsUpdate] = {}

        def choose() -> int | None:
            mine.update(self._ask(exactly, at_least, deadline) or {})
            return next(iter(mine.values())).target.version if mine else None

        version = self._agree("a version", choose)
        if version is None or mine:
            return mine or None
        updates = self._ask(version, None, time.monotonic() + self._stall_secs)
        if updates is None:
            raise WeightsTransferError(
                f"Process 0 of this explorer was offered version {version}, but {self._reader}"
                " was not."
            )
        return updates

    def _ask(
        self, exactly: int | None, at_least: int | None, deadline: float
    ) -> dict[int, WeightsUpdate] | None:
        if self._arrivals is None:
            self._connect()
        updates: dict[int, WeightsUpdate] = {}
        held = self._held.version if self._held else None
        for holder in self._by_holder:
            left = min(_SLICE_SECS, max(0.0, deadline - time.monotonic()))
            call = AskUpdate(self._reader, held, exactly, at_least, left)
            if (update := self._call(holder, call, left)) is None:
                return None
            updates[holder] = update
            exactly, at_least = update.target.version, None
        return updates

    def _connect(self) -> None:
        """Finds the trainer's processes that hold parts for this process."""
        self._addresses = self._find()
        self._clients = [RpcClient(at, TRAINER, self._secret) for at in self._addresses]
        manifest = self._call(0, AskManifest())
        if (pair := first_difference(leaves_of(self._params), manifest.leaves)) is not None:
            raise ValueError(
                f"The trainer offers {pair[1]} where this explorer has {pair[0]}: start both with"
                " the same model and the same explorer.dtype."
            )
        arrivals = Arrivals(self._params, manifest)
        self._by_holder = {}
        for part in arrivals.wanted:
            self._by_holder.setdefault(manifest.parts[part].holder, []).append(part)
        if self._manifest is not None and manifest != self._manifest:
            self._held = None  # Other parts, so another trainer: nothing of it can be a base.
        self._manifest, self._arrivals = manifest, arrivals

    def _disconnect(self) -> None:
        for client in self._clients:
            client.close()
        for source in self._known.values():
            source.close()
        self._clients, self._known = [], {}
        self._arrivals = None

    def _sources(self, key: ArtifactKey) -> list[BlockSource]:
        """Returns the explorers to ask for blocks, and the trainer's process that made them."""
        trainer = (f"process {key.holder} of the trainer", self._addresses[key.holder])
        sources: list[BlockSource] = []
        for name, address in (*self._path, trainer):
            if (name, address) not in self._known:
                self._known[name, address] = RpcSource(
                    name, address, self._secret, self._stall_secs
                )
            sources.append(self._known[name, address])
        return sources

    def _hand_on(self, call: FetchBlocks) -> list[bytes] | None:
        try:
            return [bytes(payload) for payload in self._cache.get(call.names, call.via)]
        except SourceBusyError:
            return None


class DeltaTrainerEnd(Offering):
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
            on_added=self._added,
            may_skip=schedule.pull == "latest",
            timeout_secs=session.settings.launch.wait_secs,
            agree=session.agree,
            agree_in_thread=session.team.thread("weights"),
        )
        super().__init__(site, schedule, publisher)
        session.call_alone(HoldWeights(jax.process_index(), publisher.address))

    def _added(self, version: int, added: AddedVersion) -> None:
        now = self._session.spans.now()
        self._session.spans.record(
            self._kind,
            now - added.encode_secs,
            now,
            version=version,
            background=True,
            **added.attributes,
        )
        self._session.spans.count(added.counts)
        self._session.tell(Happened(VersionPublished(version)))


def explorer_end(site: EndSite) -> ExplorerEnd:
    """Makes an explorer's end, which fetches what changed."""
    session, settings = site.session, site.session.settings
    reader = f"{session.role}.{jax.process_index()}"
    interface = interface_towards(site.master_address)
    relaying = 0 < settings.sync.fanout < settings.explorers

    def report(report: FetchReport) -> None:
        if relaying:
            with contextlib.suppress(PeerLostError, RemoteError):
                session.call_alone(
                    ReportRelay(report.source, report.nbytes, report.secs, report.failure)
                )

    puller = DeltaPuller(
        site.abstract_params,
        reader,
        lambda: await_holders(session),
        lambda version, secs: session.call_alone(AskNewest(version, secs)),
        secret=session.secret,
        call_secs=settings.launch.call_secs,
        relays=(lambda: session.call_alone(AskRelays(reader))) if relaying else lambda: (),
        serve_at=interface if relaying else None,
        on_serving=lambda address: session.call_alone(JoinRelays(reader, address)),
        on_report=report,
        agree=session.agree,
        on_lost=lambda: check_training(session),
    )
    return arriving_end(site, puller, lambda: puller.stats)
