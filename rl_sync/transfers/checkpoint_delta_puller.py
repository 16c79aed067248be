"""An explorer's end of checkpoint transfer by differences: it reads the files of versions."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import time
from collections.abc import Mapping

import jax

from rl_sync.transfers.delta_arrival import PullStats
from rl_sync.types import Params
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.deltas.applying import applied
from rl_sync.weights.deltas.artifact import FULL, Artifact, BlockName, HeldVersion, PartBlocks
from rl_sync.weights.deltas.encoding import Bytes, EncodingError
from rl_sync.weights.deltas.part_bytes import (
    itemsizes_of,
    on_devices,
    sizes_of,
)
from rl_sync.weights.deltas.part_names import manifest_of, part_names
from rl_sync.weights.deltas.version_files import (
    StoredArtifact,
    VersionFiles,
    artifact_of,
    route_to,
)
from rl_sync.weights.digest import digest
from rl_sync.weights.ends_interface import (
    WeightsMismatchError,
    WeightsTimeoutError,
    wanted_text,
)
from rl_sync.weights.locations import Location
from rl_sync.weights.parts import (
    Arrivals,
    Manifest,
)

_ATTEMPTS = 3
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class _HeldFiles:
    version: HeldVersion
    manifest: Manifest
    parts: Mapping[int, Bytes]
    params: Params


class DeltaFilesPuller:
    """Polls a weights directory, and reads what changed since the version that it has verified.

    Args:
      directory: the publisher's weights directory.
      params: abstract params in the shardings to read into.
      run: tag of the run; None to follow any run.
      reader: name that no other running puller of the directory has; by default host and process.
      agree: lets the explorer's processes agree; the first of them chooses.

    Attributes:
      stats: costs of the last pull.
    """

    def __init__(
        self,
        directory: Location,
        params: Params,
        *,
        run: str | None = None,
        reader: str | None = None,
        agree: Agree = alone,
    ) -> None:
        self._files = VersionFiles(directory, create=run is not None)
        self._params, self._run = params, run
        self._reader = reader or f"{socket.gethostname()}-{os.getpid()}"
        self._agree = agree
        self._held: _HeldFiles | None = None
        self.stats: PullStats | None = None

    @property
    def digest(self) -> str | None:
        """The digest of the version that was pulled last."""
        return self._held.version.digest if self._held else None

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """Waits for a version, and reads what it lacks; see `ends_interface.Puller`.

        Raises:
          WeightsTimeoutError: no such version was published in time.
          WeightsMismatchError, EncodingError: full copies, too, are damaged.
          ValueError: the versions belong to another model than `params`.
        """
        wanted = wanted_text(exactly, at_least)
        self.stats = None
        deadline = time.monotonic() + timeout_secs
        failures = 0
        if self._held is None:
            self._agree("mark", self._mark)
        while True:
            route, late = self._agree(
                "a version",
                lambda: (self._choose(exactly, at_least), time.monotonic() >= deadline),
            )
            if route is not None:
                try:
                    held = self._read(route, refused=failures > 0)
                except FileNotFoundError as error:
                    _log.warning("Reading weights failed, trying again: %s", error)
                except (EncodingError, WeightsMismatchError) as error:
                    failures += 1
                    if jax.process_count() > 1:  # Others would wait in the digest: all start anew.
                        raise
                    _log.warning("Weights are refused, a full copy is asked for: %s", error)
                    self._refuse(route)
                    if failures >= _ATTEMPTS:
                        raise
                else:
                    self._held = held
                    self._agree("mark", self._mark)
                    return held.version.version, held.params
            if late:
                raise WeightsTimeoutError(self._lateness(wanted, timeout_secs))
            time.sleep(self._files.poll_secs)

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """See `ends_interface.Puller`."""
        return self._agree("newest", lambda: self._await(at_least, timeout_secs))

    def close(self) -> None:
        """Tells the trainer that this reader needs nothing any more."""
        self._agree("unmark", lambda: self._files.unmark(self._reader))

    @property
    def _version(self) -> int:
        return self._held.version.version if self._held else -1

    def _stored(self) -> list[StoredArtifact]:
        return [one for one in self._files.stored() if self._run in (None, one.run)]

    def _await(self, at_least: int, timeout_secs: float) -> int:
        deadline = time.monotonic() + timeout_secs
        while True:
            newest = max((one.version for one in self._reachable()), default=-1)
            if newest >= at_least or time.monotonic() >= deadline:
                return newest
            time.sleep(self._files.poll_secs)

    def _reachable(self) -> list[StoredArtifact]:
        stored = self._stored()
        return [one for one in stored if route_to(one.version, stored, self._base) is not None]

    @property
    def _base(self) -> tuple[str, int, str] | None:
        return self._held.version if self._held else None

    def _choose(self, exactly: int | None, at_least: int | None) -> list[StoredArtifact] | None:
        stored = self._stored()
        versions = sorted({one.version for one in stored}, reverse=True)
        for version in versions:
            if exactly not in (None, version) or version < (at_least or 0):
                continue
            if (route := route_to(version, stored, self._base)) is not None:
                return route
        return None

    def _refuse(self, route: list[StoredArtifact]) -> None:
        """Forgets what is held, leaves damaged artifacts out, and asks for a full copy."""
        self._held = None
        for one in route:
            self._files.leave_out(one)
        with self._tolerance():
            self._files.wish(self._reader)

    def _mark(self) -> None:
        with self._tolerance():
            self._files.mark(self._reader, self._version)

    def _tolerance(self) -> contextlib.AbstractContextManager[None]:
        """Lets a program that follows a run go on where it may only read."""
        return contextlib.suppress(OSError) if self._run is None else contextlib.nullcontext()

    def _read(self, route: list[StoredArtifact], *, refused: bool) -> _HeldFiles:
        """Reads and applies artifacts, and compares the digest; what is held does not change."""
        if not route:
            assert self._held is not None
            return self._held
        began = time.monotonic()
        target = HeldVersion(route[-1].chain, route[-1].version, route[-1].digest)
        headers = [[self._files.header(name) for name in one.files] for one in route]
        held = self._held if route[0].base != FULL else None
        manifest = held.manifest if held else manifest_of(headers[0], route[0], self._params)
        arrivals = Arrivals(self._params, manifest)
        names = part_names(manifest)
        numbers = {names[number]: number for number in arrivals.wanted}
        payloads: dict[BlockName, memoryview] = {}
        artifacts: list[Artifact] = []
        for one, files in zip(route, headers, strict=True):
            tables: dict[int, PartBlocks] = {}
            for file in files:
                mine = {numbers[name]: name for name in file.parts if name in numbers}
                blocks = {number: file.parts[name].blocks for number, name in mine.items()}
                artifact = artifact_of(one, 0, blocks)
                payloads |= self._files.blocks(file, artifact, mine)
                tables |= blocks
            artifacts.append(artifact_of(one, 0, tables))
        received = time.monotonic()
        sizes, itemsizes = sizes_of(manifest), itemsizes_of(manifest)
        wanted = {number: sizes[number] for number in arrivals.wanted}
        parts = applied(artifacts, held.parts if held else {}, wanted, itemsizes, payloads)
        params = on_devices(parts, self._params, arrivals)
        found = digest(params)
        if found != target.digest:
            raise WeightsMismatchError(target.version, target.digest, found)
        self.stats = PullStats(
            sum(payload.nbytes for payload in payloads.values()),
            sum(wanted.values()),
            received - began,
            time.monotonic() - received,
            route[0].base == FULL,
            refused,
        )
        return _HeldFiles(target, manifest, parts, params)

    def _lateness(self, wanted: str, timeout_secs: float) -> str:
        there = ", ".join(str(one.version) for one in self._reachable()) or "none"
        others = {one.run for one in self._files.stored()} - {self._run}
        told = (
            f"Explorer {self._reader} waited {timeout_secs:.1f} s for {wanted} of the weights in"
            f" {self._files.root}. Versions there: {there}."
        )
        if self._run is not None and others and there == "none":
            return f"{told} The files there belong to another run: give this one its own directory."
        return f"{told} Either the trainer is slower than the deadline, or it has stopped."
