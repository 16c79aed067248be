"""The trainer's end of a point-to-point transfer: it offers shards, and explorers fetch them.

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
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Shaped, UInt32

from rl_sync.types import Params
from rl_sync.weights.digest import digest_words, to_text
from rl_sync.weights.interface import WeightsTransferError
from rl_sync.weights.regions import DeviceRegions
from rl_sync.weights.server_cutters import cutters
from rl_sync.weights.server_holder import Offer
from rl_sync.weights.server_manifest import first_difference, leaves_of, plan_manifest
from rl_sync.weights.server_transport import start_server

_CLOSE_SECS = 5.0
_DIGEST_SECS = 60.0


class _Held(NamedTuple):
    version: int
    parts: Mapping[int, Shaped[Array, "*part"]]
    digest: concurrent.futures.Future[UInt32[Array, " 2"]]


@dataclasses.dataclass
class _Line:
    """A transfer server for one explorer's process.

    Attributes:
      server: the server.
      version, digest: the version that the explorer was offered last, and its digest.
      busy_until_secs: the time until which it may be fetching that version; None if it has it.
    """

    server: Any
    version: int = -1
    digest: concurrent.futures.Future[UInt32[Array, " 2"]] | None = None
    busy_until_secs: float | None = None

    @property
    def is_busy(self) -> bool:
        """True where the explorer may be fetching."""
        return self.busy_until_secs is not None


class ServerPublisher:
    """Offers versions to any number of explorers; itself a `Holder`, for calls from others.

    Args:
      like: the parameters, as arrays or `jax.ShapeDtypeStruct`s with shardings.
      host: the interface at which explorers reach this process.
      expected: the regions that explorers are expected to hold; see `plan_manifest`.
      keep: the number of newest versions that are offered.
      reader_expiry_secs: the time to fetch an offer. After it an explorer counts as dead, and the
        memory of its version may be freed.
      on_ready: a function called in a thread of the publisher with each version once it is offered.

    Raises:
      ValueError: `keep` is too small.
      TypeError: a leaf's dtype has no plain bits.
      TransferUnavailableError: this JAX has no transfer server.
    """

    def __init__(
        self,
        like: Params,
        *,
        host: str,
        expected: DeviceRegions = (),
        keep: int = 1,
        reader_expiry_secs: float = 600.0,
        on_ready: Callable[[int], None] | None = None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} versions are none to offer: keep at least 1.")
        self._spare = start_server(host)  # Fails now if there is none.
        self._host = host
        self._manifest = plan_manifest(like, expected)
        self._like = like
        self._cutters = cutters(self._manifest, like)
        self._first = [part for of in self._cutters for part in of[0].indices]
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

    def publish(self, version: int, params: Params) -> None:
        """Cuts `params` into parts on the devices, without waiting; see `interface.Publisher`.

        Every process of the trainer calls it.

        Raises:
          ValueError: `params` is not as planned.
          WeightsTransferError: an earlier version could not be computed.
        """
        self._check(params)
        params = jax.tree.map(_placed, params, self._like)
        leaves = jax.tree.leaves(params)
        made = [(cutter.indices, cutter.make(leaves)) for of in self._cutters for cutter in of]
        parts = {index: part for pair in made for index, part in zip(*pair, strict=True)}
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
                lambda: not any(line.is_busy for line in self._lines.values()), _CLOSE_SECS
            )
            self._lines.clear()

    def manifest(self) -> list[Any]:
        """See `Holder`."""
        return self._manifest.to_wire()

    def open(self, reader: str) -> str:
        """See `Holder`."""
        with self._changed:
            server, self._spare = self._spare or start_server(self._host), None
            self._lines[reader] = _Line(server)
        return server.address()

    def offer(
        self,
        reader: str,
        parts: list[int],
        exactly: int | None,
        at_least: int | None,
        timeout_secs: float,
    ) -> list[Any] | None:
        """See `Holder`.

        Raises:
          ConnectionError: the explorer has no line, or lost it; it must open one.
        """

        def suitable() -> _Held | None:
            fitting = [
                held
                for held in self._held
                if (held.version == exactly if exactly is not None else True)
                and held.version >= (at_least or 0)
            ]
            return fitting[-1] if fitting else None

        with self._changed:
            self._changed.wait_for(suitable, timeout_secs)
            self._expire()
            line, held = self._line(reader), suitable()
            if held is None:
                return None
            uuid = next(self._uuids)
            line.server.await_pull(uuid, [held.parts[part] for part in parts])
            line.version, line.digest = held.version, held.digest
            line.busy_until_secs = time.monotonic() + self._reader_expiry_secs
            return list(Offer(held.version, uuid))

    def taken(self, reader: str) -> str:
        """See `Holder`.

        Raises:
          ConnectionError: the explorer has no line any more.
          TimeoutError: the trainer's thread is stuck.
          Exception: the error of the digest.
        """
        with self._changed:
            line = self._line(reader)
            line.busy_until_secs = None
            self._changed.notify_all()
        assert line.digest is not None, "taken() without an offer"
        try:
            return to_text(line.digest.result(_DIGEST_SECS))
        except concurrent.futures.TimeoutError as error:
            raise TimeoutError(
                f"{reader} has waited {_DIGEST_SECS:.0f} s for the trainer to begin with the digest"
                f" of version {line.version}, which it has fetched."
            ) from error

    def close_line(self, reader: str) -> None:
        """See `Holder`."""
        with self._changed:
            self._lines.pop(reader, None)
            self._changed.notify_all()

    def _line(self, reader: str) -> _Line:
        if reader not in self._lines:
            raise ConnectionError(f"{reader} has no line to the trainer, or was taken for dead")
        return self._lines[reader]

    def _check(self, params: Params) -> None:
        if _kinds(params) == _kinds(self._like):
            return
        if (pair := first_difference(leaves_of(params), self._manifest.leaves)) is not None:
            raise ValueError(
                f"The parameters have {pair[0]} where {pair[1]} was planned: make the publisher"
                " from the same model."
            )

    def _hold_all(self) -> None:
        try:
            while (held := self._published.get()) is not None:
                # Its computation may only have been dispatched.
                jax.block_until_ready([held.parts[part] for part in self._first])
                with self._changed:
                    self._expire()
                    self._held = [*self._held, held]
                    # The other processes of an explorer will ask for the version that one of them
                    # has.
                    wanted = {line.version for line in self._lines.values() if line.is_busy}
                    wanted |= {held.version for held in self._held[-self._keep :]}
                    self._held = [held for held in self._held if held.version in wanted]
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


def _kinds(params: Params) -> tuple[Any, list[tuple[tuple[int, ...], Any]]]:
    leaves, treedef = jax.tree.flatten(params)
    return treedef, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _placed(leaf: Array, like: Any) -> Array:
    """Returns the leaf in its planned sharding; it is moved only if it lies elsewhere."""
    planned = getattr(like, "sharding", None)
    if planned is None or leaf.sharding.is_equivalent_to(planned, leaf.ndim):
        return leaf
    return jax.device_put(leaf, planned)
