"""The trainer's end of a point-to-point transfer: it offers its shards, and explorers fetch them.

Trainer and explorers are independent JAX programs. Each process of the trainer offers the parts
that its own devices hold; an explorer's process asks each of them for what it needs. Nobody waits:
a version is cut into parts on the devices when it is published, and is offered once the first of
them are computed, so that they travel while the others are; what is being fetched stays until it
was fetched, or its explorer is taken for dead.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
from jaxtyping import Array, Shaped, UInt32

from rl_sync.types import Params
from rl_sync.weights.copies import dispatching
from rl_sync.weights.digest import digest_words, to_text
from rl_sync.weights.interface import WeightsTransferError
from rl_sync.weights.regions import Places, device_regions, within
from rl_sync.weights.server_manifest import (
    Manifest,
    first_difference,
    leaves_of,
    plan_manifest,
)
from rl_sync.weights.server_transport import start_server

_CLOSE_SECS = 5.0
_DIGEST_SECS = 60.0
_PROGRAMS = 4


class Offer(NamedTuple):
    """One version, ready to be fetched by one explorer.

    Attributes:
      version: the policy version.
      uuid: what to ask the transfer server for.
    """

    version: int
    uuid: int


class Holder(Protocol):
    """One process of the trainer, as explorers reach it; arguments and results are plain values.

    All raise `ConnectionError` when the process does not answer.
    """

    def manifest(self) -> list[Any]:
        """The manifest; see `Manifest.to_wire`."""

    def open(self, reader: str) -> str:
        """Starts a transfer server for an explorer's process, in place of its earlier one.

        Returns:
          The server's address.
        """

    def offer(
        self,
        reader: str,
        parts: list[int],
        exactly: int | None,
        at_least: int | None,
        timeout_secs: float,
    ) -> list[Any] | None:
        """Waits for a version, and registers parts of it with the explorer's transfer server.

        Returns:
          An `Offer`, as a list; None if there is no such version in time.
        """

    def taken(self, reader: str) -> str:
        """The explorer has everything that it was offered last.

        Returns:
          The digest of that version's parameters, which is computed while they travel.
        """

    def close_line(self, reader: str) -> None:
        """The explorer will not ask again."""


class _Held(NamedTuple):
    version: int
    parts: Mapping[int, Shaped[Array, "*part"]]
    digest: concurrent.futures.Future[UInt32[Array, " 2"]]


@dataclasses.dataclass
class _Line:
    """A transfer server for one explorer's process.

    Attributes:
      server: the server.
      version, digest: of what the explorer was offered last.
      busy_until_secs: until when it may be fetching that; None if it has it.
    """

    server: Any
    version: int = -1
    digest: concurrent.futures.Future[UInt32[Array, " 2"]] | None = None
    busy_until_secs: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the explorer may be fetching."""
        return self.busy_until_secs is not None


class ServerPublisher:
    """Offers versions to any number of explorers; it is itself a `Holder`, for calls from others.

    Args:
      like: the parameters, as arrays or `jax.ShapeDtypeStruct`s with shardings.
      host: the interface at which explorers reach this process.
      places: where explorers are expected to hold the parameters; see `plan_manifest`.
      keep: how many of the newest versions are offered.
      reader_expiry_secs: who has not fetched an offer for so long is taken for dead, and what it
        held in memory may go.
      on_ready: called, in a thread of the publisher's, with each version that is now offered.

    Raises:
      ValueError: `keep` is too small.
      TypeError: a leaf's dtype has no plain bits.
      TransferUnavailableError: there is no transfer server here.
    """

    def __init__(
        self,
        like: Params,
        *,
        host: str,
        places: Places = (),
        keep: int = 1,
        reader_expiry_secs: float = 600.0,
        on_ready: Callable[[int], None] | None = None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} versions are none to offer: keep at least 1.")
        self._spare = start_server(host)  # Whoever cannot have one should know now.
        self._host = host
        self._manifest = plan_manifest(like, places)
        self._like = like
        self._cutters = _cutters(self._manifest, like)
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
        # What it takes to begin with the digest, the first explorer need not wait for.
        held = _Held(version, parts, concurrent.futures.Future())
        self._published.put(held)
        try:
            held.digest.set_result(digest_words(params))
        except BaseException as error:
            held.digest.set_exception(error)
            raise

    def close(self) -> None:
        """Offers nothing more, lets explorers finish what they fetch for a while; frees it all."""
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
          ConnectionError: the explorer has no line, or has none any more; it has to open one.
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
          TimeoutError: the trainer's thread stands still.
          Exception: what the digest failed with.
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
                # What computes it may only have been dispatched.
                jax.block_until_ready([held.parts[part] for part in self._first])
                with self._changed:
                    self._expire()
                    self._held = [*self._held, held]
                    # The other processes of an explorer will ask for what one of them has got.
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
        """Lets go of explorers that have not fetched what they asked for, and of what they hold."""
        now = time.monotonic()
        for reader, line in list(self._lines.items()):
            if line.busy_until_secs is not None and line.busy_until_secs < now:
                del self._lines[reader]


class _Cutter(NamedTuple):
    """What makes some of the parts of one device of all leaves, and the indices of those parts."""

    indices: tuple[int, ...]
    make: Callable[[list[Array]], list[Shaped[Array, "*part"]]]


def _cutters(manifest: Manifest, like: Params) -> list[list[_Cutter]]:
    """For each device of this process what makes its parts, in the order in which to run it."""
    here = jax.process_index()
    regions = [device_regions(leaf) for leaf in jax.tree.leaves(like)]
    by_device: dict[int, list[int]] = {}
    for index, part in enumerate(manifest.parts):
        if part.holder == here:
            by_device.setdefault(part.device, []).append(index)
    devices = {device.id: device for device in jax.local_devices()}
    return [
        [
            _Cutter(indices, _maker(manifest, devices[device], indices, regions))
            for indices in _alike_in_bytes(manifest, parts)
        ]
        for device, parts in by_device.items()
    ]


def _alike_in_bytes(manifest: Manifest, indices: list[int]) -> list[tuple[int, ...]]:
    """Some runs of parts, of about as many bytes each."""
    nbytes = [
        like.size * like.dtype.itemsize
        for like in (manifest.like(manifest.parts[index]) for index in indices)
    ]
    ends = itertools.accumulate(nbytes)
    runs: dict[int, list[int]] = {}
    for index, end in zip(indices, ends, strict=True):
        runs.setdefault((end - 1) * _PROGRAMS // sum(nbytes), []).append(index)
    return [tuple(run) for run in runs.values()]


def _maker(
    manifest: Manifest,
    device: jax.Device,
    indices: tuple[int, ...],
    regions: list[Mapping[jax.Device, Any]],
) -> Callable[[list[Array]], list[Shaped[Array, "*part"]]]:
    used = sorted({piece.leaf for index in indices for piece in manifest.parts[index].pieces})

    @dispatching
    def make(shards: dict[int, Shaped[Array, "*shard"]]) -> list[Shaped[Array, "*part"]]:
        return [
            manifest.pack(
                part,
                [
                    shards[piece.leaf][within(piece.region, regions[piece.leaf][device])]
                    for piece in part.pieces
                ],
            )
            for part in map(manifest.parts.__getitem__, indices)
        ]

    return lambda leaves: make({leaf: _shard(leaves[leaf], device) for leaf in used})


def _kinds(params: Params) -> tuple[Any, list[tuple[tuple[int, ...], Any]]]:
    leaves, treedef = jax.tree.flatten(params)
    return treedef, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _placed(leaf: Array, like: Any) -> Array:
    """The leaf where it was planned to lie, which is where it lies but by mistake."""
    planned = getattr(like, "sharding", None)
    if planned is None or leaf.sharding.is_equivalent_to(planned, leaf.ndim):
        return leaf
    return jax.device_put(leaf, planned)


def _shard(leaf: Array, device: jax.Device) -> Shaped[Array, "*shard"]:
    return next(shard.data for shard in leaf.addressable_shards if shard.device == device)
