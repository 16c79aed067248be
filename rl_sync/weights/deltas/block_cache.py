"""Blocks that this process has fetched: a transfer resumes with them, and others may get them here.

Whoever asks a cache for a block that it lacks makes it fetch the block, so explorers in a row pass
blocks on one by one, while the rest of an artifact still travels. A block is handed on only after
its check sum was found right, by the list that came from the trainer itself.
"""

from __future__ import annotations

import collections
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from rl_sync.weights.deltas.artifact import Artifact, ArtifactKey, BlockName, check_block
from rl_sync.weights.deltas.encoding import EncodingError
from rl_sync.weights.ends_interface import WeightsTransferError

BATCH_BYTES = 512 << 10
"""Bytes that one request asks for; a block that is larger travels alone."""

_FIRST_STREAMS = 2
_MOST_STREAMS = 8
_WINDOW_SECS = 0.3
_GAIN = 1.15
"""Growth of the rate that justifies twice as many streams."""
_SKIP_SECS = 60.0
_BUSY_SECS = 10.0
"""Maximum wait of another cache for a block that this one is fetching."""

_log = logging.getLogger(__name__)

Payload = bytes | memoryview


class SourceBusyError(ConnectionError):
    """A source cannot give a block now, through no fault of its own."""


class BlockSource(Protocol):
    """A process that has blocks.

    Attributes:
      name: name of the process, for errors and reports.
    """

    name: str

    def blocks(self, names: Sequence[BlockName], via: Sequence[str], stream: int) -> list[bytes]:
        """Fetches blocks.

        Args:
          names: the blocks.
          via: caches that the request has passed through; a source that is one of them refuses.
          stream: number of the connection; blocks of several streams travel at once.

        Raises:
          SourceBusyError: the source cannot give them now.
          ConnectionError: the source does not answer, or refuses.
        """

    def reconnect(self, stream: int) -> None:
        """Closes a connection, so that the next request makes a new one."""


class FetchReport(NamedTuple):
    """Result of requests to one source.

    Attributes:
      source: name of the source.
      nbytes: bytes that it sent.
      secs: seconds that this took, over all streams.
      failure: why it is not asked for a while; empty if it did well.
    """

    source: str
    nbytes: int
    secs: float
    failure: str = ""


class BlockCache:
    """Fetches blocks from the first source that has them, each block once.

    Args:
      name: name of this cache among those that requests pass through.
      sources: returns the sources of an artifact, in the order of preference. The last one is the
        trainer's process that made it.
      artifact: returns the list of an artifact's blocks, as its maker gives it.
      most_bytes: bytes that are kept after their use, for others.
      on_report: called with the result of requests to a source.
    """

    def __init__(
        self,
        name: str,
        sources: Callable[[ArtifactKey], Sequence[BlockSource]],
        artifact: Callable[[ArtifactKey], Artifact],
        *,
        most_bytes: int = 0,
        on_report: Callable[[FetchReport], None] = lambda report: None,
    ) -> None:
        self._name, self._sources, self._list = name, sources, artifact
        self._most_bytes, self._on_report = most_bytes, on_report
        self._lock = threading.Lock()
        self._artifacts: collections.OrderedDict[ArtifactKey, Artifact] = collections.OrderedDict()
        self._blocks: dict[BlockName, Payload] = {}
        self._in_flight: dict[BlockName, concurrent.futures.Future[Payload]] = {}
        self._skipped: dict[str, float] = {}
        self.streams = _FIRST_STREAMS

    def fetch(
        self, artifacts: Iterable[Artifact], parts: Sequence[int]
    ) -> dict[BlockName, Payload]:
        """Returns all blocks of some parts that have bytes, and fetches those that are not here.

        Raises:
          WeightsTransferError: no source has a block.
        """
        names: list[BlockName] = []
        with self._lock:
            for artifact in artifacts:
                self._artifacts[artifact.key] = artifact
                self._artifacts.move_to_end(artifact.key)
                names += artifact.blocks([part for part in parts if part in artifact.parts])
        batches = collections.deque(self._batches(names))
        found: dict[BlockName, Payload] = {}
        failures: list[BaseException] = []
        done, lock = 0, threading.Lock()

        def run(stream: int) -> None:
            nonlocal done
            while not failures:
                with lock:
                    if not batches:
                        return
                    batch = batches.popleft()
                try:
                    payloads = self.get(batch, (), stream)
                except BaseException as error:
                    failures.append(error)
                    return
                with lock:
                    found.update(zip(batch, payloads, strict=True))
                    done += sum(map(len, payloads))

        self._run_streams(run, lambda: done, lambda: bool(batches) and not failures)
        if failures:
            raise failures[0]
        return found

    def get(
        self, names: Sequence[BlockName], via: Sequence[str] = (), stream: int = 0
    ) -> list[Payload]:
        """Returns blocks, and fetches those that are not here.

        Raises:
          SourceBusyError: the request has come from here, over others; or it comes from another
            cache, and a block is still on its way here. Two caches may wait for each other.
          WeightsTransferError: no source has a block.
        """
        if self._name in via:
            raise SourceBusyError(f"{self._name} has asked for this itself, over others")
        mine: list[BlockName] = []
        waiting: dict[BlockName, concurrent.futures.Future[Payload]] = {}
        payloads: dict[BlockName, Payload] = {}
        with self._lock:
            for name in names:
                if (payload := self._blocks.get(name)) is not None:
                    payloads[name] = payload
                elif (future := self._in_flight.get(name)) is not None:
                    waiting[name] = future
                else:
                    self._in_flight[name] = concurrent.futures.Future()
                    mine.append(name)
        if mine:
            payloads |= self._fetched(mine, [*via, self._name], stream)
        for name, future in waiting.items():
            try:
                payloads[name] = future.result(_BUSY_SECS if via else None)
            except concurrent.futures.TimeoutError:
                raise SourceBusyError(f"{self._name} waits for this block itself") from None
        return [payloads[name] for name in names]

    def release(self) -> None:
        """Drops the oldest artifacts beyond `most_bytes`, once their blocks have been used."""
        with self._lock:
            sizes: collections.Counter[ArtifactKey] = collections.Counter()
            for name, payload in self._blocks.items():
                sizes[name.key] += len(payload)
            total = sum(sizes.values())
            # Blocks may have arrived after their artifact was dropped.
            dropped = [key for key in sizes if key not in self._artifacts]
            for key in [*dropped, *self._artifacts]:
                if total <= self._most_bytes:
                    break
                total -= sizes[key]
                self._artifacts.pop(key, None)
                for name in [name for name in self._blocks if name.key == key]:
                    del self._blocks[name]

    def skip(self, source: str, secs: float = _SKIP_SECS) -> None:
        """Leaves a source out for a while."""
        self._skipped[source] = time.monotonic() + secs

    def _batches(self, names: Sequence[BlockName]) -> Iterable[list[BlockName]]:
        batch: list[BlockName] = []
        nbytes = 0
        for name in names:
            size = self._artifacts[name.key].parts[name.part].sizes[name.number]
            if batch and (nbytes + size > BATCH_BYTES or batch[0].key != name.key):
                yield batch
                batch, nbytes = [], 0
            batch.append(name)
            nbytes += size
        if batch:
            yield batch

    def _run_streams(
        self, run: Callable[[int], None], done: Callable[[], int], goes_on: Callable[[], bool]
    ) -> None:
        """Runs a few streams, and more of them as long as that makes all together faster."""
        threads: list[threading.Thread] = []

        def begin(count: int) -> None:
            for stream in range(len(threads), count):
                threads.append(threading.Thread(target=run, args=(stream,), daemon=True))
                threads[-1].start()

        begin(self.streams)
        best, before, since = 0.0, 0, time.monotonic()
        while any(thread.is_alive() for thread in threads):
            threads[0].join(_WINDOW_SECS) if threads[0].is_alive() else time.sleep(0.001)
            now = time.monotonic()
            if not goes_on():
                for thread in threads:
                    thread.join()
                return
            if now - since < _WINDOW_SECS:
                continue
            got, rate = done(), (done() - before) / (now - since)
            if rate > best * _GAIN and len(threads) < _MOST_STREAMS:
                best, self.streams = rate, min(2 * len(threads), _MOST_STREAMS)
                begin(self.streams)
            before, since = got, now

    def _fetched(
        self, names: list[BlockName], via: list[str], stream: int
    ) -> Mapping[BlockName, Payload]:
        try:
            payloads = self._from_sources(names, via, stream)
        except BaseException as error:
            with self._lock:
                for name in names:
                    self._in_flight.pop(name).set_exception(error)
            raise
        with self._lock:
            for name, payload in zip(names, payloads, strict=True):
                self._blocks[name] = payload
                self._in_flight.pop(name).set_result(payload)
        return dict(zip(names, payloads, strict=True))

    def _from_sources(self, names: list[BlockName], via: list[str], stream: int) -> list[bytes]:
        key = names[0].key
        with self._lock:
            artifact = self._artifacts.get(key)
        if artifact is None:
            artifact = self._list(key)
            with self._lock:
                self._artifacts[key] = artifact
        why: list[str] = []
        sources = [*self._sources(key)]
        sources += sources[-1:]  # The trainer gets a second chance, over a new connection.
        for number, source in enumerate(sources):
            is_last = source is sources[-1]
            if number and number == len(sources) - 1:
                source.reconnect(stream)
            if not is_last and self._skipped.get(source.name, 0.0) > time.monotonic():
                continue
            began = time.monotonic()
            try:
                payloads = source.blocks(names, via, stream)
                for name, payload in zip(names, payloads, strict=True):
                    check_block(artifact, name, payload)
            except SourceBusyError as error:
                why.append(f"{source.name}: {error}")
                continue
            except (ConnectionError, EncodingError, ValueError) as error:
                why.append(f"{source.name}: {error}")
                _log.warning("Weights are fetched from elsewhere than %s: %s", source.name, error)
                if not is_last:
                    self.skip(source.name)
                secs = time.monotonic() - began
                self._on_report(FetchReport(source.name, 0, secs, str(error)))
                continue
            nbytes, secs = sum(map(len, payloads)), time.monotonic() - began
            self._on_report(FetchReport(source.name, nbytes, secs))
            return payloads
        reasons = "; ".join(why) or "there is no source"
        raise WeightsTransferError(f"Blocks of {key} cannot be fetched: {reasons}")
