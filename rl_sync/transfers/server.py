"""Point-to-point transfer: the trainer offers parts of each version, and explorers fetch them.

Trainer and explorers are independent JAX programs. Each process of the trainer offers the parts
that its own devices hold; an explorer's process asks each of them for what it needs. Nobody waits.
On publication, the devices cut a version into parts. The version is offered once the first parts
are computed, so that they are transferred while the others are computed. A version stays until
every explorer that began to fetch it has it, or counts as dead.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
from jaxtyping import Array, Shaped, UInt32

from rl_sync.actors.events import VersionPublished
from rl_sync.processes.calls import AskStatus, Happened
from rl_sync.processes.messages import record
from rl_sync.processes.ports import interface_towards
from rl_sync.processes.rpc import Call, Desk, PeerLostError, RemoteError, RpcClient, RpcServer
from rl_sync.processes.session import RunStoppedError
from rl_sync.processes.weight_calls import AskHolders, AskNewest, HoldWeights
from rl_sync.roles import TRAINER
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.ends import Ends, ExplorerEnd, Offering, Site
from rl_sync.types import Params
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.cells import DeviceRegions, Piece, mesh_regions
from rl_sync.weights.digest import LeafSums, combine, digest_words, leaf_sums, to_text
from rl_sync.weights.interface import (
    WeightsMismatchError,
    WeightsTimeoutError,
    WeightsTransferError,
    wanted_text,
)
from rl_sync.weights.parts import (
    Arrivals,
    Cutter,
    Leaf,
    Manifest,
    Part,
    first_difference,
    leaves_of,
    plan_manifest,
)
from rl_sync.weights.server_transport import start_server, wait_ready

_CLOSE_SECS = 5.0
_DIGEST_SECS = 60.0
_POLL_SECS = 0.1
_SLICE_SECS = 1.0
_THREADS = 64
_log = logging.getLogger(__name__)

R = TypeVar("R")


class VersionOffer(NamedTuple):
    """One version, ready to be fetched by one explorer's process.

    Attributes:
      version: the policy version.
      uuid: the id to ask the transfer server for.
    """

    version: int
    uuid: int


for _class in (Leaf, Manifest, VersionOffer, Part, Piece):
    record(_class)


@dataclasses.dataclass(frozen=True)
class AskManifest(Call[Manifest]):
    """Asks a process of the trainer for the manifest."""


@dataclasses.dataclass(frozen=True)
class OpenLine(Call[str]):
    """Starts a transfer server for an explorer's process, in place of its earlier one.

    The answer is the server's address.
    """

    reader: str


@dataclasses.dataclass(frozen=True)
class AskOffer(Call[VersionOffer | None]):
    """Waits for a version, and registers parts of it with the explorer's transfer server.

    The answer is None if there is no such version in time.
    """

    reader: str
    parts: list[int]
    exactly: int | None
    at_least: int | None
    timeout_secs: float


@dataclasses.dataclass(frozen=True)
class Taken(Call[str]):
    """Reports that the explorer's process has fetched all parts of its last offer.

    The answer is the digest of that version's parameters, which is computed during the transfer.
    """

    reader: str


@dataclasses.dataclass(frozen=True)
class CloseLine(Call[None]):
    """Reports that the explorer's process will not ask again."""

    reader: str


class _Held(NamedTuple):
    version: int
    parts: Mapping[int, Shaped[Array, "*part"]]
    digest: concurrent.futures.Future[UInt32[Array, " 2"]]


@dataclasses.dataclass
class _Line:
    """A transfer server for one explorer's process.

    Attributes:
      server: the server.
      offered: the version that the explorer was offered last.
      busy_until_secs: the time until which it may be fetching that version; None if it has it.
    """

    server: Any
    offered: _Held | None = None
    busy_until_secs: float | None = None


class ServerPublisher:
    """Offers versions to any number of explorers, and answers their calls.

    Args:
      params: abstract params in the trainer's shardings.
      host: the interface at which explorers reach this process.
      secret: the run's secret, which callers must know.
      expected: the regions that explorers are expected to hold; see `plan_manifest`.
      keep: the number of newest versions that are offered.
      reader_expiry_secs: the time to fetch an offer. After it an explorer counts as dead, and the
        memory of its version may be freed.
      on_ready: a function called in a thread of the publisher with each version once it is offered.

    Attributes:
      address: `host:port`, where calls are answered.

    Raises:
      ValueError: `keep` is too small.
      TypeError: a leaf's dtype has no plain bits.
      TransferUnavailableError: this JAX has no transfer server.
    """

    def __init__(
        self,
        params: Params,
        *,
        host: str,
        secret: str,
        expected: DeviceRegions = (),
        keep: int = 1,
        reader_expiry_secs: float = 600.0,
        on_ready: Callable[[int], None] | None = None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} versions are none to offer: keep at least 1.")
        self._spare = start_server(host)  # Fails now if there is none.
        self._host, self._params = host, params
        self._manifest = plan_manifest(params, expected)
        self._cutter = Cutter(self._manifest, params)
        self._keep = keep
        self._reader_expiry_secs = reader_expiry_secs
        self._on_ready = on_ready
        self._changed = threading.Condition()
        self._held: list[_Held] = []
        self._lines: dict[str, _Line] = {}
        self._uuids = itertools.count(1)
        self._error: BaseException | None = None
        self._published: queue.SimpleQueue[_Held | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._hold_all, name="weights-offers", daemon=True)
        self._thread.start()
        desk = Desk(
            AskManifest.answered_by(lambda call: self._manifest),
            OpenLine.answered_by(self._open),
            AskOffer.answered_by(self._offer),
            Taken.answered_by(self._taken),
            CloseLine.answered_by(self._close_line),
        )
        self._server = RpcServer(desk, 0, host, _THREADS, secret)
        self.address = f"{host}:{self._server.port}"

    def publish(self, version: int, params: Params) -> None:
        """Cuts `params` into parts on the devices, without waiting; see `interface.Publisher`.

        Every process of the trainer calls it.

        Raises:
          ValueError: `params` is not as planned.
          WeightsTransferError: an earlier version could not be computed.
        """
        if (pair := first_difference(leaves_of(params), self._manifest.leaves)) is not None:
            raise ValueError(
                f"The parameters have {pair[0]} where {pair[1]} was planned: make the publisher"
                " from the same model."
            )
        params = jax.tree.map(_placed, params, self._params)
        parts = self._cutter.cut(params)
        with self._changed:
            if self._error is not None:
                raise WeightsTransferError(
                    f"Weights could not be offered: {self._error}"
                ) from self._error
        # The digest begins later, so that the first explorer need not wait for it.
        held = _Held(version, parts, concurrent.futures.Future())
        self._published.put(held)
        try:
            held.digest.set_result(digest_words(params))
        except BaseException as error:
            held.digest.set_exception(error)
            raise

    def close(self) -> None:
        """Stops offering, lets explorers finish their fetches for a while, and frees everything."""
        self._published.put(None)
        self._thread.join()
        with self._changed:
            self._held.clear()
            self._changed.wait_for(
                lambda: all(line.busy_until_secs is None for line in self._lines.values()),
                _CLOSE_SECS,
            )
            self._lines.clear()
        self._server.close()

    def _open(self, call: OpenLine) -> str:
        with self._changed:
            server, self._spare = self._spare or start_server(self._host), None
            self._lines[call.reader] = _Line(server)
        return server.address()

    def _offer(self, call: AskOffer) -> VersionOffer | None:
        """Raises a ConnectionError if the explorer lost its line; it must open one."""

        def suitable() -> _Held | None:
            for held in reversed(self._held):
                if call.exactly in (None, held.version) and held.version >= (call.at_least or 0):
                    return held
            return None

        with self._changed:
            self._changed.wait_for(suitable, call.timeout_secs)
            self._expire()
            line, held = self._line(call.reader), suitable()
            if held is None:
                return None
            uuid = next(self._uuids)
            line.server.await_pull(uuid, [held.parts[part] for part in call.parts])
            line.offered = held
            line.busy_until_secs = time.monotonic() + self._reader_expiry_secs
            return VersionOffer(held.version, uuid)

    def _taken(self, call: Taken) -> str:
        """Raises a TimeoutError if the trainer's thread is stuck, or the error of the digest."""
        with self._changed:
            line = self._line(call.reader)
            held, line.offered, line.busy_until_secs = line.offered, None, None
            self._changed.notify_all()
        assert held is not None, "Taken without an offer"
        try:
            return to_text(held.digest.result(_DIGEST_SECS))
        except concurrent.futures.TimeoutError as error:
            raise TimeoutError(
                f"{call.reader} has waited {_DIGEST_SECS:.0f} s for the trainer to begin with the"
                f" digest of version {held.version}, which it has fetched."
            ) from error

    def _close_line(self, call: CloseLine) -> None:
        with self._changed:
            self._lines.pop(call.reader, None)
            self._changed.notify_all()

    def _line(self, reader: str) -> _Line:
        if reader not in self._lines:
            raise ConnectionError(f"{reader} has no line to the trainer, or was taken for dead")
        return self._lines[reader]

    def _hold_all(self) -> None:
        try:
            while (held := self._published.get()) is not None:
                # Its computation may only have been dispatched.
                jax.block_until_ready([held.parts[part] for part in self._cutter.first])
                with self._changed:
                    self._expire()
                    self._held.append(held)
                    # The other processes of an explorer will ask for the version that one of them
                    # has.
                    wanted = {of.offered.version for of in self._lines.values() if of.offered}
                    wanted |= {of.version for of in self._held[-self._keep :]}
                    self._held = [of for of in self._held if of.version in wanted]
                    self._changed.notify_all()
                if self._on_ready is not None:
                    self._on_ready(held.version)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _expire(self) -> None:
        """Drops explorers that have not fetched their offer in time, which frees their versions."""
        now = time.monotonic()
        for reader, line in list(self._lines.items()):
            if line.busy_until_secs is not None and line.busy_until_secs < now:
                del self._lines[reader]


def _placed(leaf: Array, planned: Any) -> Array:
    """Returns the leaf in its planned sharding; it is moved only if it lies elsewhere."""
    sharding = getattr(planned, "sharding", None)
    if sharding is None or leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return leaf
    return jax.device_put(leaf, sharding)


class _Source(NamedTuple):
    """Connection to one process of the trainer.

    Attributes:
      name: the name of the process, for errors.
      client: calls its publisher.
      connection: the connection to its transfer server.
      parts: the parts that are fetched from it.
    """

    name: str
    client: RpcClient
    connection: Any
    parts: list[int]


class ServerPuller:
    """Fetches versions from a trainer's processes into the explorer's own sharding.

    Each process of an explorer has a puller, which gets the shards of its own devices. All of them
    call `pull` with the same arguments.

    Args:
      params: abstract params in the shardings to pull into.
      reader: a name that no other running puller of the trainer has.
      find: finds the publishers of the trainer's processes, by their index; called again after a
        failure. A ConnectionError of it is an error of the pull.
      newest: returns the newest offered version, -1 if there is none. Its arguments are the version
        to wait for, and the longest wait in seconds.
      host: this process's own interface.
      call_secs: the longest that a publisher takes to answer, besides what it is asked to wait.
      check_digest: whether to compare the digest of the received weights with the published one.
      agree: the explorer's processes agree by it; the first of them chooses the version.
      stall_secs: the time after which a transfer without progress is given up.
      on_lost: called when a pull breaks; it may raise the reason, in place of the pull's error.

    Raises:
      TransferUnavailableError: this JAX has no transfer server.
    """

    def __init__(
        self,
        params: Params,
        reader: str,
        find: Callable[[], Sequence[RpcClient]],
        newest: Callable[[int, float], int],
        *,
        host: str,
        call_secs: float,
        check_digest: bool = True,
        agree: Agree = alone,
        stall_secs: float = 60.0,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._params, self._reader = params, reader
        self._find, self._newest = find, newest
        self._server = start_server(host)
        self._call_secs = call_secs
        self._check_digest = check_digest
        self._agree = agree
        self._stall_secs = stall_secs
        self._on_lost = on_lost
        self._sources: list[_Source] = []
        self._arrivals: Arrivals | None = None

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """Waits for a version and fetches it; see `interface.Puller`.

        The deadline is for the offer; a transfer that makes progress may take longer. After an
        error the next pull connects anew.

        Raises:
          WeightsTimeoutError: no such version was offered in time.
          WeightsMismatchError: the received weights differ from the published ones.
          WeightsTransferError: the trainer is gone, or is stuck.
          ValueError: the trainer offers another model than `params`.
        """
        wanted = wanted_text(exactly, at_least)
        deadline = time.monotonic() + timeout_secs
        try:
            while not (offers := self._offers(exactly, at_least, deadline)):
                if self._agree("late", lambda: time.monotonic() >= deadline):
                    raise WeightsTimeoutError(
                        f"{self._reader} waited {timeout_secs:.1f} s for {wanted} of the weights;"
                        f" the newest that the trainer offers is {self.newest()}. Either the"
                        " trainer is slower than the deadline, or it has stopped."
                    )
            params, received = self._fetched(offers)
            published = [self._call(of, Taken(self._reader)) for of in self._sources]
        except (ConnectionError, PeerLostError, RemoteError, WeightsTransferError) as error:
            self._arrivals = None
            self._on_lost()
            if isinstance(error, WeightsTransferError):
                raise
            raise WeightsTransferError(
                f"{self._reader} wanted {wanted} of the weights, but the trainer does not answer:"
                f" {error}"
            ) from error
        if self._check_digest and received != published[0]:
            raise WeightsMismatchError(offers[0].version, published[0], received)
        return offers[0].version, params

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """See `interface.Puller`."""
        return self._newest(at_least, timeout_secs)

    def close(self) -> None:
        """Tells the trainer, if it is still there, that this process will not ask again."""
        for source in self._sources:
            try:
                self._call(source, CloseLine(self._reader))
            except (PeerLostError, RemoteError):
                _log.info("The trainer had left before this explorer did.")
        self._sources, self._arrivals = [], None

    def _call(self, source: _Source, call: Call[R], waits_secs: float = 0.0) -> R:
        return source.client.call(call, self._call_secs + waits_secs)

    def _offers(
        self, exactly: int | None, at_least: int | None, deadline: float
    ) -> list[VersionOffer] | None:
        """Asks each of the trainer's processes for an offer; None if there is none yet."""
        mine: list[VersionOffer] = []

        def choose() -> int | None:
            mine.extend(self._ask(exactly, at_least, deadline) or [])
            return mine[0].version if mine else None

        version = self._agree("a version", choose)
        if version is None or mine:
            return mine
        offers = self._ask(version, None, time.monotonic() + self._stall_secs)
        if offers is None:
            raise WeightsTransferError(
                f"Process 0 of this explorer was offered version {version}, but {self._reader} was"
                " not."
            )
        return offers

    def _ask(
        self, exactly: int | None, at_least: int | None, deadline: float
    ) -> list[VersionOffer] | None:
        """Asks each process for an offer of one version; None if there is none at the moment."""
        if self._arrivals is None:
            self._connect()
        offers: list[VersionOffer] = []
        for source in self._sources:
            left = min(_SLICE_SECS, max(0.0, deadline - time.monotonic()))
            call = AskOffer(self._reader, source.parts, exactly, at_least, left)
            if (offer := self._call(source, call, left)) is None:
                return None
            offers.append(offer)
            exactly, at_least = offers[0].version, None
        return offers

    def _connect(self) -> None:
        """Opens a line to each of the trainer's processes that has parts for this process."""
        clients = self._find()
        manifest = clients[0].call(AskManifest(), self._call_secs)
        if (pair := first_difference(leaves_of(self._params), manifest.leaves)) is not None:
            raise ValueError(
                f"The trainer offers {pair[1]} where this explorer has {pair[0]}: start both with"
                " the same model and the same explorer.dtype."
            )
        arrivals = Arrivals(self._params, manifest)
        by_holder: dict[int, list[int]] = {}
        for part in arrivals.wanted:
            by_holder.setdefault(manifest.parts[part].holder, []).append(part)
        self._sources = []
        for index, parts in sorted(by_holder.items()):
            address = clients[index].call(OpenLine(self._reader), self._call_secs)
            name = f"process {index} of the trainer at {address}"
            self._sources.append(
                _Source(name, clients[index], self._server.connect(address), parts)
            )
        self._arrivals = arrivals

    def _fetched(self, offers: Sequence[VersionOffer]) -> tuple[Params, str]:
        """Fetches the parameters, and their digest if it is to be checked."""
        assert self._arrivals is not None
        arriving: dict[int, tuple[Array, str]] = {}
        for source, offer in zip(self._sources, offers, strict=True):
            wanted = [self._arrivals.wanted[part] for part in source.parts]
            arrays = source.connection.pull(offer.uuid, wanted)
            name = f"{source.name} (version {offer.version})"
            arriving |= {p: (x, name) for p, x in zip(source.parts, arrays, strict=True)}

        def arrive(part: int) -> Array:
            array, name = arriving.pop(part)
            wait_ready(array, self._stall_secs, name)
            return array

        # All processes of an explorer compute the digest together, so at its end all have
        # everything. Until then the version is kept for each of them.
        checked = self._check_digest or jax.process_count() > 1
        leaves: list[Array] = []
        sums: list[LeafSums] = []
        for leaf in self._arrivals.assembled(arrive):
            leaves.append(leaf)
            if checked:
                sums.append(leaf_sums(leaf))
        params = jax.tree.unflatten(jax.tree.structure(self._params), leaves)
        return params, to_text(combine(params, sums)) if checked else ""


class ServerTrainerEnd(Offering):
    """Cuts versions on the devices and offers them; explorers fetch them when they like.

    Args:
      site: the trainer's.
      schedule: decides how many versions are offered.
    """

    def __init__(self, site: Site, schedule: SyncSchedule):
        session = site.session
        publisher = ServerPublisher(
            site.like,
            host=interface_towards(site.master_address),
            secret=session.secret,
            expected=mesh_regions(site.like_on(session.settings.explorer_layout)),
            keep=schedule.versions_in_use,
            on_ready=lambda version: session.tell(Happened(VersionPublished(version))),
        )
        super().__init__(site, schedule, publisher)
        session.call_alone(HoldWeights(jax.process_index(), publisher.address))


def puller_of(site: Site) -> ServerPuller:
    """Makes an explorer's puller.

    A pull raises a `RunStoppedError` if it breaks since the run is being stopped, or since the
    trainer has made its last step.
    """
    session = site.session
    launch, processes = session.settings.launch, session.settings.trainer.processes

    def find() -> list[RpcClient]:
        deadline = time.monotonic() + launch.call_secs
        while len(addresses := session.call_alone(AskHolders())) < processes:
            if time.monotonic() > deadline:
                raise ConnectionError(
                    f"{len(addresses)} of the trainer's {processes} processes serve weights after"
                    f" {launch.call_secs:g} s"
                )
            time.sleep(_POLL_SECS)
        return [RpcClient(address, TRAINER, session.secret) for address in addresses]

    def check() -> None:
        session.check()
        if session.call(AskStatus()).phase == "end":
            raise RunStoppedError("the trainer has finished")

    return ServerPuller(
        site.like,
        f"{session.role}.{jax.process_index()}",
        find,
        lambda version, secs: session.call(AskNewest(version, secs)),
        host=interface_towards(site.master_address),
        call_secs=launch.call_secs,
        check_digest=site.verify,
        agree=session.agree,
        on_lost=check,
    )


def _try_out(master_address: str) -> None:
    start_server(interface_towards(master_address))


ENDS = Ends(
    trainer=ServerTrainerEnd,
    explorer=lambda site: ExplorerEnd(puller_of(site)),
    published_bytes=lambda version, schedule: schedule.versions_in_use * version,
    arriving_bytes=lambda version: version // 2,  # Parts before their assembly.
    try_out=_try_out,
)
