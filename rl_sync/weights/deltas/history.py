"""The sender's newest versions on the host, and the artifacts that lead to them."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from rl_sync.weights.deltas.artifact import (
    FULL,
    Artifact,
    ArtifactKey,
    BlockName,
    HeldVersion,
    PartBlocks,
    chain_from,
    check_of,
)
from rl_sync.weights.deltas.encoding import (
    BLOCK_BYTES,
    Bytes,
    ChangedElements,
    EncodedBlock,
    Encoding,
    empty,
    encode,
)
from rl_sync.weights.deltas.retention import kept_versions

_MOST_THREADS = 8


class AddedVersion(NamedTuple):
    """Result of adding a version.

    Attributes:
      delta: its difference to the version before it; None for the first.
      dense_bytes: bytes of the version.
      encode_secs: time that the encoding took.
    """

    delta: Artifact | None
    dense_bytes: int
    encode_secs: float

    @property
    def attributes(self) -> dict[str, float]:
        """The same as attributes of a span."""
        delta = self.delta
        return {
            "dense_bytes": self.dense_bytes,
            "encode_secs": round(self.encode_secs, 4),
            "delta_bytes": self.dense_bytes if delta is None else delta.nbytes(),
            "changed_share": 1.0 if delta is None else delta.changed / max(1, delta.elements),
        }

    @property
    def counts(self) -> dict[str, float]:
        """The same as totals of a run's metrics."""
        delta = self.delta
        if delta is None:
            return {}
        return {
            "weights/changed_elements": delta.changed,
            "weights/elements": delta.elements,
            "weights/delta_bytes": delta.nbytes(),
            "weights/dense_bytes": self.dense_bytes,
            "weights/encode_secs": self.encode_secs,
        }


class _Version(NamedTuple):
    digest: str
    parts: Mapping[int, Bytes]


class VersionHistory:
    """Encodes each version as its difference to the one before it, and answers for the blocks.

    It holds the newest versions, which full copies are made of, and differences as long as they
    lead to the newest version in fewer bytes than a full copy. The version that the next difference
    is taken to is always one that it holds. Threads may share it.

    Args:
      chain: see `ArtifactKey`.
      holder: index of this process in the trainer.
      itemsizes: bytes of an element of each part.
      keep: number of newest versions that receivers may ask for.
      evaluated_every: see `kept_versions`.
      deltas: whether versions are encoded; otherwise, each is only offered as a full copy.

    Attributes:
      chain: see `ArtifactKey`.
      encodes: whether versions are encoded.
    """

    def __init__(
        self,
        chain: str,
        holder: int,
        itemsizes: Mapping[int, int],
        keep: int = 1,
        *,
        evaluated_every: int = 0,
        deltas: bool = True,
    ):
        self.chain, self._holder, self._itemsizes = chain, holder, itemsizes
        self._keep, self._evaluated_every, self.encodes = keep, evaluated_every, deltas
        self._lock = threading.Condition(threading.RLock())
        self._versions: dict[int, _Version] = {}
        self._deltas: dict[int, Artifact] = {}
        self._full: dict[int, Artifact] = {}
        self._payloads: dict[ArtifactKey, dict[tuple[int, int], bytes | memoryview]] = {}
        self._in_use: dict[str, tuple[list[Artifact], float]] = {}
        self._acknowledged: dict[str, int] = {}
        threads = min(_MOST_THREADS, os.cpu_count() or 1)
        self._threads = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="encode")

    def add(
        self,
        version: int,
        digest: Callable[[], str],
        given: Mapping[int, Bytes | ChangedElements],
    ) -> AddedVersion:
        """Adds the newest version.

        Args:
          version: the version.
          digest: returns its digest; called after the encoding, beside which it may be computed.
          given: bytes of each part, which must not change afterwards, or its changes to the version
            that was added last, if differences are encoded.
        """
        began = time.monotonic()
        with self._lock:
            base = max(self._versions, default=None) if self.encodes else None
            before = None if base is None else self._versions[base]
        parts = {
            part: one if isinstance(one, np.ndarray) else _memory(one, before, part)
            for part, one in given.items()
        }
        delta: Artifact | None = None
        payloads: dict[tuple[int, int], bytes | memoryview] = {}
        if base is not None and before is not None:
            key = ArtifactKey(self.chain, version, base, self._holder)
            delta, payloads = self._encoded(key, parts, before, given)
            if base == version:  # It was added again: no receiver needs what differs.
                delta = None
        secs = time.monotonic() - began
        known = digest()
        with self._lock:
            self._versions[version] = _Version(known, parts)
            if delta is not None:
                delta = delta._replace(digest=known)
                self._deltas[version] = delta
                self._payloads[delta.key] = payloads
            self._prune()
            self._lock.notify_all()
        return AddedVersion(delta, _nbytes(parts), secs)

    def versions(self) -> list[int]:
        """Returns the versions that receivers may ask for, oldest first."""
        with self._lock:
            return kept_versions(self._versions, self._keep, self._evaluated_every)

    def offer(
        self,
        exactly: int | None,
        at_least: int | None,
        timeout_secs: float,
        *,
        held: HeldVersion | None,
        reader: str,
        expiry_secs: float,
    ) -> tuple[HeldVersion, list[Artifact]] | None:
        """Waits for a version, and chooses what a receiver has to fetch for it; see `route`.

        Args:
          exactly: the only version that will do.
          at_least: minimum version; the newest one is offered.
          timeout_secs: maximum wait.
          held, reader, expiry_secs: see `route`.

        Returns:
          The result of `route`; None if the version is late.
        """
        with self._lock:
            version = self.await_version(exactly, at_least, timeout_secs)
            return None if version is None else self.route(version, held, reader, expiry_secs)

    def await_version(
        self, exactly: int | None, at_least: int | None, timeout_secs: float
    ) -> int | None:
        """Waits for a version, and returns the newest one that will do; None if it is late.

        Args:
          exactly: the only version that will do.
          at_least: minimum version.
          timeout_secs: maximum wait.
        """

        def suitable() -> int | None:
            fitting = [
                version
                for version in self.versions()
                if exactly in (None, version) and version >= (at_least or 0)
            ]
            return max(fitting, default=None)

        with self._lock:
            self._lock.wait_for(lambda: suitable() is not None, timeout_secs)
            return suitable()

    def artifact(self, key: ArtifactKey) -> Artifact:
        """Returns the list of an artifact's blocks.

        Raises:
          KeyError: there is no such artifact, or no longer.
        """
        with self._lock:
            known = [*self._deltas.values(), *self._full.values()]
            known += [one for route, _ in self._in_use.values() for one in route]
            for artifact in known:
                if artifact.key == key:
                    return artifact
        raise KeyError(f"{key} is not kept any more")

    def route(
        self, version: int, held: HeldVersion | None, reader: str, secs: float
    ) -> tuple[HeldVersion, list[Artifact]]:
        """Chooses what a receiver has to fetch, and keeps it until the receiver acknowledges.

        Args:
          version: version that it shall have; one of `versions`.
          held: its verified version.
          reader: its name.
          secs: time after which the receiver counts as dead, unless it acknowledges.

        Returns:
          The version with its digest, and the artifacts to apply in order; none if the receiver has
          the version.

        Raises:
          KeyError: there is no such version.
        """
        with self._lock:
            digest, parts = self._versions[version]
            target = HeldVersion(self.chain, version, digest)
            route = chain_from(held, self._deltas, target, _nbytes(parts))
            if route is None:
                route = [self.full(version)]
            self._in_use[reader] = route, time.monotonic() + secs
            return target, route

    def full(self, version: int) -> Artifact:
        """Returns the full copy of a version that is held."""
        with self._lock:
            if version not in self._full:
                self._full[version] = self._copied(version)
            return self._full[version]

    def payload(self, name: BlockName) -> bytes | memoryview:
        """Returns the bytes of a block.

        Raises:
          KeyError: there is no such artifact, or no longer; the message says which.
        """
        with self._lock:
            payloads = self._payloads.get(name.key)
            if payloads is None:
                raise KeyError(f"{name.key} is not kept any more")
            return payloads[name.part, name.number]

    def acknowledge(self, reader: str, version: int) -> None:
        """Notes that a receiver has verified a version: it needs nothing older."""
        with self._lock:
            self._acknowledged[reader] = version
            self._in_use.pop(reader, None)
            self._prune()

    def forget(self, reader: str) -> None:
        """Forgets a receiver, for which nothing needs to be kept any more."""
        with self._lock:
            self._acknowledged.pop(reader, None)
            self._in_use.pop(reader, None)
            self._prune()

    def busy(self) -> bool:
        """Says whether a receiver may still be fetching something."""
        with self._lock:
            return any(until > time.monotonic() for _, until in self._in_use.values())

    def close(self) -> None:
        """Ends the threads that encode."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _encoded(
        self,
        key: ArtifactKey,
        parts: Mapping[int, Bytes],
        before: _Version,
        given: Mapping[int, Bytes | ChangedElements],
    ) -> tuple[Artifact, dict[tuple[int, int], bytes | memoryview]]:
        """Returns a difference, without the digest of its result, and its blocks.

        Args:
          key: name of the difference.
          parts: bytes of each part; where changes are given, memory to write them to.
          before: the version before.
          given: see `add`.
        """
        changes = {
            part: one.blocks(BLOCK_BYTES)
            for part, one in given.items()
            if isinstance(one, ChangedElements) and len(one.values)
        }

        def encoded(place: tuple[int, int]) -> EncodedBlock:
            part, start = place
            if parts[part] is before.parts[part]:
                return EncodedBlock(Encoding.SAME, b"", 0)
            span = slice(start, start + BLOCK_BYTES)
            new, base = parts[part][span], before.parts[part][span]
            changed = changes[part][start // BLOCK_BYTES] if part in changes else None
            return encode(new, base, self._itemsizes[part], changed)

        places = list(_places(parts))
        blocks = list(self._threads.map(encoded, places))
        changed = sum(block.changed for block in blocks)
        payloads: dict[tuple[int, int], bytes | memoryview] = {}
        rows: dict[int, list[EncodedBlock]] = {part: [] for part in parts}
        for (part, _), block in zip(places, blocks, strict=True):
            payloads[part, len(rows[part])] = block.payload
            rows[part].append(block)
        tables = {part: _table(row) for part, row in rows.items()}
        artifact = Artifact(key, "", before.digest, tables, changed, self._elements(parts))
        return artifact, payloads

    def _copied(self, version: int) -> Artifact:
        digest, parts = self._versions[version]
        key = ArtifactKey(self.chain, version, FULL, self._holder)
        payloads = {
            (part, number): parts[part][start : start + BLOCK_BYTES].data
            for part in parts
            for number, start in enumerate(range(0, parts[part].nbytes, BLOCK_BYTES))
        }
        checks = dict(zip(payloads, self._threads.map(check_of, payloads.values()), strict=True))
        tables = {}
        for part in parts:
            names = [name for name in payloads if name[0] == part]
            tables[part] = PartBlocks(
                bytes([Encoding.RAW]) * len(names),
                [payloads[name].nbytes for name in names],
                [checks[name] for name in names],
            )
        self._payloads[key] = dict(payloads)
        elements = self._elements(parts)
        return Artifact(key, digest, "", tables, elements, elements)

    def _elements(self, parts: Mapping[int, Bytes]) -> int:
        return sum(parts[part].nbytes // self._itemsizes[part] for part in parts)

    def _prune(self) -> None:
        """Drops what no receiver needs any more."""
        now = time.monotonic()
        for reader, (_, until) in list(self._in_use.items()):
            if until < now:  # It counts as dead.
                del self._in_use[reader]
                self._acknowledged.pop(reader, None)
        for version in {*self._versions} - {*self.versions()}:
            del self._versions[version]
        slowest = min(self._acknowledged.values(), default=-1)
        newest = max(self._versions, default=None)
        room = 0 if newest is None else _nbytes(self._versions[newest].parts)
        for version in sorted(self._deltas, reverse=True):
            room -= self._deltas[version].nbytes()
            is_newest = version == max(self._versions)
            if (room <= 0 and not is_newest) or version <= slowest:
                del self._deltas[version]
        used = {one.key for route, _ in self._in_use.values() for one in route}
        used |= {delta.key for delta in self._deltas.values()}
        for version, full in list(self._full.items()):
            if version not in self._versions and full.key not in used:
                del self._full[version]
        used |= {full.key for full in self._full.values()}
        for key in list(self._payloads):
            if key not in used:
                del self._payloads[key]


def _memory(changes: ChangedElements, before: _Version | None, part: int) -> Bytes:
    """Returns memory for a changed part, or that of the version before if nothing changed."""
    assert before is not None, "changes without a version that they belong to"
    there = before.parts[part]
    return empty(there.nbytes) if len(changes.values) else there


def _places(parts: Mapping[int, Bytes]) -> Iterable[tuple[int, int]]:
    for part, content in parts.items():
        for start in range(0, content.nbytes, BLOCK_BYTES):
            yield part, start


def _table(blocks: list[EncodedBlock]) -> PartBlocks:
    return PartBlocks(
        bytes(block.encoding for block in blocks),
        [len(block.payload) for block in blocks],
        [check_of(block.payload) for block in blocks],
    )


def _nbytes(parts: Mapping[int, Bytes]) -> int:
    return sum(part.nbytes for part in parts.values())
