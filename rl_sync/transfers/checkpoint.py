"""Checkpoint transfer: artifacts of versions as files, which explorers poll.

The trainer writes each version as its difference to the one before, and now and then as a full copy
(`rl_sync.weights.deltas.version_files`). Where differences are off, each version is a full copy:
its difference to nothing. An explorer reads the fewest bytes that lead from its verified version to
the one that it wants. If one is damaged, it takes another way, and asks for a full copy where there
is none.

Trainer and explorers are independent JAX programs that share only the directory. So explorers may
die, restart and join at any time. The directory may be in a bucket (`gs://…`, `s3://…`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping

import jax

from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.artifact_ends import ArtifactTrainerEnd, PullStats, arriving_end, queue_rules
from rl_sync.transfers.ends import Ends, EndSite, ExplorerEnd
from rl_sync.types import Params
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.background_publisher import QueueRules
from rl_sync.weights.cells import DeviceRegions, mesh_regions
from rl_sync.weights.deltas.applying import HeldWeights, applied, installed
from rl_sync.weights.deltas.artifact import (
    FULL,
    Artifact,
    BlockName,
    HeldVersion,
    PartBlocks,
    check_copy,
    payloads_of,
)
from rl_sync.weights.deltas.encoding import Bytes, EncodingError
from rl_sync.weights.deltas.history import AddedVersion, VersionHistory
from rl_sync.weights.deltas.history_publisher import CutVersion, HistoryPublisher
from rl_sync.weights.deltas.part_names import arrivals_of, part_names, plain_name
from rl_sync.weights.deltas.retention import VersionRetention
from rl_sync.weights.deltas.version_files import (
    StoredArtifact,
    VersionFiles,
    artifact_of,
    route_to,
)
from rl_sync.weights.ends_interface import (
    WeightsMismatchError,
    WeightsTimeoutError,
    WeightsTransferError,
    wanted_text,
)
from rl_sync.weights.locations import Location
from rl_sync.weights.parts import Cutter, plan_manifest
from rl_sync.workdir import Workdir

_OTHERS_SECS = 300.0
_ATTEMPTS = 3
_log = logging.getLogger(__name__)


class CheckpointPublisher(HistoryPublisher):
    """Writes versions in its own thread.

    Args:
      directory: the weights directory; versions of an earlier publisher are removed.
      params: abstract params in the trainer's shardings.
      run: tag of the run.
      chain: id of this publisher, the same in all processes of the trainer.
      deltas: whether to write differences. Otherwise each version is written as a full copy, and
        compared with no other.
      expected: regions that explorers are expected to hold; see `plan_manifest`.
      retention: rules for what is kept.
      on_saved: called in a thread with each version once it is readable, and the seconds since its
        computation.
      frame: files of a checkpoint of transformers besides its weights, by name.
      rules: rules of the queue of versions.
      agree_wishes: lets the threads of the trainer's processes agree that serve wishes.
    """

    def __init__(
        self,
        directory: Location,
        params: Params,
        *,
        run: str,
        chain: str,
        deltas: bool = True,
        expected: DeviceRegions = (),
        retention: VersionRetention = VersionRetention(),  # noqa: B008
        on_saved: Callable[[int, AddedVersion, float], None] = lambda version, added, secs: None,
        frame: Mapping[str, bytes] | None = None,
        rules: QueueRules = QueueRules(),  # noqa: B008
        agree_wishes: Agree = alone,
    ) -> None:
        self._files = VersionFiles(directory)
        self._run = run
        self._deltas, self._retention, self._on_saved = deltas, retention, on_saved
        self._may_skip = rules.may_skip
        self._agree_saving, self._agree_wishes = rules.agree_in_thread, agree_wishes
        self._since_full: int | None = None
        self._bytes_since_full = 0
        self._writing = threading.Lock()
        self._closed = threading.Event()
        rules.agree("the weights directory", lambda: self._begin(frame or {}))
        self._manifest = plan_manifest(params, expected)
        history = VersionHistory(
            chain, jax.process_index(), self._manifest.itemsizes, deltas=deltas
        )
        cutter = Cutter(self._manifest, params)
        super().__init__(cutter, history, str(self._files.root), rules)
        self._names = part_names(self._manifest)
        self._holders = sorted({part.holder for part in self._manifest.parts})
        self._wishes = threading.Thread(target=self._serve, name="weights-wishes", daemon=True)
        self._wishes.start()

    def close(self) -> None:
        """Waits until all versions are written, and ends the threads.

        Raises:
          WeightsTimeoutError: this takes longer than the deadline.
          WeightsTransferError: a version could not be written.
        """
        try:
            self._queue.close()
        finally:
            self._closed.set()
            self._wishes.join()
            self.history.close()

    def _begin(self, frame: Mapping[str, bytes]) -> None:
        self._files.clear()
        for name, content in frame.items():
            self._files.write_frame(name, content)

    def _offer(self, version: int, cut: CutVersion) -> None:
        began = time.monotonic()
        with self._writing:
            added = self._added(version, cut)
            delta = added.delta
            full = self._agree_saving("the kind of copy", lambda: self._needs_full(added))
            changes = self._agree_saving("whether it pays", lambda: self._pays(added))
            try:
                if delta is not None and changes and self._since_full is not None:
                    self._write(delta, added.dense_bytes, self._agree_saving)
                if full:
                    self._write(self.history.full(version), added.dense_bytes, self._agree_saving)
            except OSError as error:
                self._give_up(version, error)
                return
            self._since_full = 0 if full else (self._since_full or 0) + 1
            written = 0 if full or delta is None else delta.nbytes()
            self._bytes_since_full = self._bytes_since_full + written if written else 0
            self._agree_saving("retention", self._retain)
        self._on_saved(version, added, time.monotonic() - began)

    def _needs_full(self, added: AddedVersion) -> bool:
        if self._since_full is None or added.delta is None:
            return True
        # A chain that is as long as a full copy is no use to a reader that begins.
        chain = self._bytes_since_full + added.delta.nbytes()
        return self._since_full + 1 >= self._retention.full_every or chain >= added.dense_bytes

    def _pays(self, added: AddedVersion) -> bool:
        return added.delta is not None and added.delta.nbytes() < added.dense_bytes

    def _write(self, artifact: Artifact, dense_bytes: int, agree: Agree) -> None:
        """Writes an artifact, together with the trainer's other processes.

        Raises:
          OSError: the disk is full, or not writable.
        """
        payloads = {
            (name.part, name.number): self.history.payload(name)
            for name in artifact.blocks(list(artifact.parts))
        }
        key = artifact.key
        try:
            self._files.write_parts(artifact, self._names, payloads)
        except OSError:
            self._files.remove_parts(key.version, key.base, key.holder)
            raise
        agree("complete", lambda: self._complete(artifact, dense_bytes))

    def _complete(self, artifact: Artifact, dense_bytes: int) -> None:
        """Writes the manifest, once the files of all processes are there."""
        key = artifact.key
        base = key.base
        one = StoredArtifact(
            self._run,
            self.history.chain,
            key.version,
            base,
            artifact.digest,
            artifact.base_digest,
            [],
            artifact.nbytes(),
            dense_bytes,
            [(plain_name(leaf), leaf.dtype, list(leaf.shape)) for leaf in self._manifest.leaves],
            secrets.token_hex(4),
        )
        files = [f"{one.name}.p{holder}.safetensors" for holder in self._holders]
        deadline = time.monotonic() + _OTHERS_SECS
        while missing := [name for name in files if not self._files.exists(name)]:
            if time.monotonic() > deadline:
                raise OSError(
                    f"{missing[0]} was not written by another process of the trainer within"
                    f" {_OTHERS_SECS:g} s"
                )
            time.sleep(self._files.poll_secs)
        # Each process has an equal part of the parameters, or none.
        share = len(self._holders)
        self._files.announce(
            one._replace(
                files=files, nbytes=one.nbytes * share, dense_bytes=one.dense_bytes * share
            )
        )

    def _give_up(self, version: int, error: OSError) -> None:
        """Makes room, and leaves a version out: the next one is written as a full copy.

        Raises:
          WeightsTransferError: explorers need this version.
        """
        self._since_full = None
        self._agree_saving("room", lambda: self._retain(tight=True))
        told = f"Version {version} could not be written to {self._files.root}: {error}."
        if not self._may_skip:
            raise WeightsTransferError(f"{told} Explorers need every version of this schedule.")
        _log.warning("%s It is left out; the next one will be a full copy.", told)

    def _retain(self, *, tight: bool = False) -> None:
        """Deletes what no reader needs any more; see `VersionRetention.unneeded`."""
        rules = self._retention
        stored = self._files.stored()
        marked = self._files.held(rules.reader_expiry_secs).values()
        for one in rules.unneeded(stored, marked, deltas=self._deltas, tight=tight):
            self._files.delete(one)

    def _serve(self) -> None:
        """Writes a full copy of the newest version when a reader asks for one."""
        while True:
            asked = self._agree_wishes("wishes", self._await_wish)
            if asked is None:
                return
            with self._writing:
                self._write_wished()

    def _write_wished(self) -> None:
        versions = self.history.versions()
        if not versions:
            return
        full = self.history.full(versions[-1])
        try:
            self._write(full, full.nbytes(), self._agree_wishes)
        except OSError as error:
            _log.warning("A full copy that a reader asked for was not written: %s", error)

    def _await_wish(self) -> bool | None:
        while not self._closed.wait(self._files.poll_secs * 10):
            if self._files.take_wishes():
                return True
        return None


class CheckpointPuller:
    """Polls a weights directory, and reads what changed since the version that it has verified.

    Args:
      directory: the publisher's weights directory.
      params: abstract params in the shardings to read into.
      run: tag of the run; None to follow any run.
      reader: name that no other running puller of the directory has; by default host and process.
      deltas: whether the publisher writes differences. Then the parts of the verified version are
        held, to apply them to.
      check_digest: whether to compare the digest of the weights with the published one; without
        differences only.
      agree: lets the explorer's processes agree; the first of them chooses.
      on_pulled: called with the costs of each pull that fetched something.

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
        deltas: bool = True,
        check_digest: bool = True,
        agree: Agree = alone,
        on_pulled: Callable[[PullStats], None] = lambda stats: None,
    ) -> None:
        assert check_digest or not deltas, "differences are only right on a verified version"
        self._files = VersionFiles(directory, create=run is not None)
        self._params, self._run = params, run
        self._reader = reader or f"{socket.gethostname()}-{os.getpid()}"
        self._deltas, self._check_digest = deltas, check_digest
        self._agree, self._on_pulled = agree, on_pulled
        self._held: HeldWeights | None = None
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
        if self._deltas and self._held is None:
            self._agree("mark", lambda: self._mark(-1))
        while True:
            route, late = self._agree(
                "a version",
                lambda: (self._choose(exactly, at_least), time.monotonic() >= deadline),
            )
            if route is not None:
                if not self._deltas:
                    self._agree("mark", functools.partial(self._mark, route[-1].version))
                try:
                    held = self._read(route, refused=failures > 0)
                except (EncodingError, WeightsMismatchError, OSError) as error:
                    gone = isinstance(error, FileNotFoundError)
                    failures += not gone
                    if jax.process_count() > 1 and not gone:
                        raise  # Others would wait in the digest: all start anew.
                    _log.warning("Weights cannot be read, trying again: %s", error)
                    if not isinstance(error, OSError):
                        self._refuse(route)
                    if failures >= _ATTEMPTS:
                        raise
                else:
                    self._settle(held)
                    if self.stats is not None:
                        self._on_pulled(self.stats)
                    return held.version.version, held.params
            if late:
                raise WeightsTimeoutError(self._lateness(wanted, timeout_secs))
            time.sleep(self._files.poll_secs)

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """See `ends_interface.Puller`."""
        return self._agree("newest", lambda: self._await(at_least, timeout_secs))

    def close(self) -> None:
        """Tells the trainer that this reader needs nothing any more."""
        self._agree("unmark", self._unmark)

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
    def _base(self) -> HeldVersion | None:
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

    def _settle(self, held: HeldWeights) -> None:
        """Holds a version as the base of differences; without them, gives it free."""
        if self._deltas:
            self._held = held
            self._agree("mark", lambda: self._mark(held.version.version))
        else:
            self._agree("unmark", self._unmark)

    def _mark(self, version: int) -> None:
        with self._tolerance():
            self._files.mark(self._reader, version)

    def _unmark(self) -> None:
        with self._tolerance():
            self._files.unmark(self._reader)

    def _tolerance(self) -> contextlib.AbstractContextManager[None]:
        """Lets a program that follows a run go on where it may only read."""
        return contextlib.suppress(OSError) if self._run is None else contextlib.nullcontext()

    def _read(self, route: list[StoredArtifact], *, refused: bool) -> HeldWeights:
        """Reads and applies artifacts, and compares the digest; what is held does not change."""
        if not route:
            assert self._held is not None
            return self._held
        began = time.monotonic()
        target = HeldVersion(route[-1].chain, route[-1].version, route[-1].digest)
        headers = [[self._files.header(name) for name in one.files] for one in route]
        held = self._held if route[0].base != FULL else None
        arrivals = held.arrivals if held else arrivals_of(headers[0], route[0], self._params)
        manifest = arrivals.manifest
        names = part_names(manifest)
        numbers = {names[number]: number for number in arrivals.wanted}
        sizes = manifest.sizes
        wanted = {number: sizes[number] for number in arrivals.wanted}
        parts = held.parts if held else {}
        payloads: dict[BlockName, memoryview] = {}
        differences: list[Artifact] = []
        received_bytes = 0
        for one, files in zip(route, headers, strict=True):
            tables: dict[int, PartBlocks] = {}
            contents: dict[int, Bytes] = {}
            for file in files:
                mine = {numbers[name]: name for name in file.parts if name in numbers}
                contents |= self._files.contents(file, mine)
                tables |= {number: file.parts[name].blocks for number, name in mine.items()}
            received_bytes += sum(content.nbytes for content in contents.values())
            artifact = artifact_of(one, 0, tables)
            if one.base == FULL:
                check_copy(artifact, wanted)
                parts = contents
            else:
                differences.append(artifact)
                payloads |= payloads_of(artifact, contents)
        received = time.monotonic()
        if differences:
            parts = applied(differences, parts, wanted, manifest.itemsizes, payloads)
        new = installed(target, arrivals, parts, self._check_digest)
        self.stats = PullStats(
            received_bytes,
            sum(wanted.values()),
            received - began,
            time.monotonic() - received,
            route[0].base == FULL,
            refused,
        )
        return new

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


def run_tag(secret: str) -> str:
    """Returns a tag of a run that does not show its secret."""
    return hashlib.sha256(f"weights {secret}".encode()).hexdigest()[:16]


class CheckpointTrainerEnd(ArtifactTrainerEnd):
    """Writes versions in the background, and tells the master when each is readable.

    Args:
      site: the trainer's site.
      schedule: decides how many versions are kept, and whether every version is needed.
    """

    def __init__(self, site: EndSite, schedule: SyncSchedule):
        session = site.session
        settings = session.settings
        publisher = CheckpointPublisher(
            settings.weights_directory(Workdir(settings.workdir)),
            site.abstract_params,
            run=run_tag(session.secret),
            chain=session.agree("the chain", lambda: secrets.token_hex(8)),
            deltas=settings.deltas,
            expected=mesh_regions(site.abstract_params_on(settings.explorer_layout)),
            retention=VersionRetention(
                schedule.versions_kept,
                settings.sync.full_every,
                evaluated_every=settings.explorers_evaluate_every,
            ),
            on_saved=self._added,
            frame=site.frame() if session.leads else None,
            rules=queue_rules(session, schedule),
            agree_wishes=session.team.thread("wishes"),
        )
        super().__init__(site, schedule, publisher)


def _explorer(site: EndSite) -> ExplorerEnd:
    session = site.session
    settings = session.settings

    def pulled(stats: PullStats) -> None:
        if settings.deltas:
            session.spans.count(stats.counts)

    puller = CheckpointPuller(
        settings.weights_directory(Workdir(settings.workdir)),
        site.abstract_params,
        run=run_tag(session.secret),
        reader=f"{session.role}.{socket.gethostname()}-{os.getpid()}",
        deltas=settings.deltas,
        check_digest=site.verify,
        agree=session.agree,
        on_pulled=pulled,
    )
    return arriving_end(site, puller) if settings.deltas else ExplorerEnd(puller)


def _published_bytes(version: int, schedule: SyncSchedule, deltas: bool) -> int:
    """Returns the bytes of the version that is written, and of the one before it.

    If steps continue meanwhile, two more versions wait, and one is being computed. A difference
    is as large as a version at most, and the next version waits beside it.
    """
    return (5 if schedule.pull == "latest" else 4 if deltas else 2) * version


ENDS = Ends(
    trainer=CheckpointTrainerEnd,
    explorer=_explorer,
    published_bytes=_published_bytes,
    # Files are read to the host's memory. With differences: the bytes of its parts, the blocks,
    # and a version that has arrived and is not in use yet.
    arriving_bytes=lambda version, deltas: (3 if deltas else 1) * version,
)
