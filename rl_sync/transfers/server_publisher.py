"""The trainer's end of the server transfer: it offers parts of each version to explorers.

On publication, the devices cut a version into parts. The version is offered once the first parts
are computed, so that the others are computed during the transfer. A version is kept until every
explorer that began to fetch it has it, or counts as dead.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
from jaxtyping import Array, Shaped, UInt32

from rl_sync.addresses import address_of
from rl_sync.cluster.rpc import CallHandlers, RpcServer
from rl_sync.isolation.codec import record
from rl_sync.messages.call import Call
from rl_sync.types import Params
from rl_sync.weights.cells import AbstractArray, DeviceRegions, Piece
from rl_sync.weights.deltas.retention import kept_versions
from rl_sync.weights.digest import digest_words, to_text
from rl_sync.weights.ends_interface import WeightsTransferError
from rl_sync.weights.parts import (
    Cutter,
    Leaf,
    Manifest,
    Part,
    plan_manifest,
)
from rl_sync.weights.server_transport import start_server

if TYPE_CHECKING:
    from jax.experimental.transfer import TransferServer

_CLOSE_SECS = 5.0
_DIGEST_SECS = 60.0
_THREADS = 64


class VersionOffer(NamedTuple):
    """One version, ready to be fetched by one explorer's process.

    Attributes:
      version: policy version.
      uuid: id under which the transfer server has it.
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
    """Starts a transfer server for an explorer's process, which replaces its earlier one.

    The result is the server's address.
    """

    reader: str


@dataclasses.dataclass(frozen=True)
class AskOffer(Call[VersionOffer | None]):
    """Waits for a version, and registers its parts with the explorer's transfer server.

    The result is None if there is no such version in time.
    """

    reader: str
    parts: list[int]
    exactly: int | None
    at_least: int | None
    timeout_secs: float


@dataclasses.dataclass(frozen=True)
class Taken(Call[str]):
    """Reports that the explorer's process has fetched all parts of its last offer.

    The result is the digest of that version's parameters, which is computed during the transfer.
    """

    reader: str


@dataclasses.dataclass(frozen=True)
class CloseLine(Call[None]):
    """Reports that the explorer's process will send no more calls."""

    reader: str


class _OfferedCopy(NamedTuple):
    version: int
    parts: Mapping[int, Shaped[Array, "*part"]]
    digest: concurrent.futures.Future[UInt32[Array, " 2"]]


@dataclasses.dataclass
class _Line:
    """A transfer server for one explorer's process.

    Attributes:
      server: the server.
      offered: version of the explorer's last offer.
      busy_until_secs: time until which the explorer may be fetching that version; None once it has
        it.
    """

    server: TransferServer
    offered: _OfferedCopy | None = None
    busy_until_secs: float | None = None


class ServerPublisher:
    """Offers versions to any number of explorers, and answers their calls.

    Args:
      params: abstract params in the trainer's shardings.
      host: interface at which explorers reach this process.
      secret: the run's secret, which callers must know.
      expected: regions that explorers are expected to hold; see `plan_manifest`.
      keep: number of newest versions that are offered.
      evaluated_every: see `kept_versions`.
      reader_expiry_secs: maximum time for fetching an offer. After it, an explorer counts as dead,
        and the memory of its version may be freed.
      on_ready: function that a thread of the publisher calls with each version once it is offered.

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
        evaluated_every: int = 0,
        reader_expiry_secs: float = 600.0,
        on_ready: Callable[[int], None] | None = None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} leaves no version to offer: keep at least 1.")
        # Raises here if there is none.
        self._spare: TransferServer | None = start_server(host)
        self._host, self._params = host, params
        self._manifest = plan_manifest(params, expected)
        self._cutter = Cutter(self._manifest, params)
        self._keep, self._evaluated_every = keep, evaluated_every
        self._reader_expiry_secs = reader_expiry_secs
        self._on_ready = on_ready
        self._changed = threading.Condition()
        self._held: list[_OfferedCopy] = []
        self._lines: dict[str, _Line] = {}
        self._uuids = itertools.count(1)
        self._error: BaseException | None = None
        self._published: queue.SimpleQueue[_OfferedCopy | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._hold_all, name="weights-offers", daemon=True)
        self._thread.start()
        desk = CallHandlers(
            AskManifest.answered_by(lambda call: self._manifest),
            OpenLine.answered_by(self._open),
            AskOffer.answered_by(self._offer),
            Taken.answered_by(self._taken),
            CloseLine.answered_by(self._close_line),
        )
        self._server = RpcServer(desk, 0, host, _THREADS, secret)
        self.address = address_of(host, self._server.port)

    def publish(self, version: int, params: Params) -> None:
        """Cuts `params` into parts on the devices, without waiting; see `ends_interface.Publisher`.

        Every process of the trainer calls it.

        Raises:
          ValueError: `params` does not match the plan.
          WeightsTransferError: an earlier version could not be computed.
        """
        self._cutter.check(params)
        params = jax.tree.map(_placed, params, self._params)
        parts = self._cutter.cut(params)
        with self._changed:
            if self._error is not None:
                raise WeightsTransferError(
                    f"Weights could not be offered: {self._error}"
                ) from self._error
        # The digest starts later, so that the first explorer need not wait for it.
        held = _OfferedCopy(version, parts, concurrent.futures.Future())
        self._published.put(held)
        try:
            held.digest.set_result(digest_words(params))
        except BaseException as error:
            held.digest.set_exception(error)
            raise

    def close(self) -> None:
        """Stops offering, lets explorers finish their fetches for a while, and frees all memory."""
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
        """Raises a ConnectionError if the explorer lost its line; it must open a new one."""

        def suitable() -> _OfferedCopy | None:
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
                f"{call.reader} has waited {_DIGEST_SECS:.0f} s for the trainer to start the"
                f" digest of version {held.version}, which it has fetched."
            ) from error

    def _close_line(self, call: CloseLine) -> None:
        with self._changed:
            self._lines.pop(call.reader, None)
            self._changed.notify_all()

    def _line(self, reader: str) -> _Line:
        if reader not in self._lines:
            raise ConnectionError(f"{reader} has no line to the trainer, or counts as dead")
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
                    # already has.
                    wanted = {of.offered.version for of in self._lines.values() if of.offered}
                    versions = [of.version for of in self._held]
                    wanted |= {*kept_versions(versions, self._keep, self._evaluated_every)}
                    self._held = [of for of in self._held if of.version in wanted]
                    self._changed.notify_all()
                if self._on_ready is not None:
                    self._on_ready(held.version)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _expire(self) -> None:
        """Drops explorers that have not fetched their offer in time, and frees their versions."""
        now = time.monotonic()
        for reader, line in list(self._lines.items()):
            if line.busy_until_secs is not None and line.busy_until_secs < now:
                del self._lines[reader]


def _placed(leaf: Array, planned: AbstractArray) -> Array:
    """Returns the leaf in its planned sharding; it is moved only if it lies elsewhere."""
    sharding = getattr(planned, "sharding", None)
    if sharding is None or leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return leaf
    return jax.device_put(leaf, sharding)
