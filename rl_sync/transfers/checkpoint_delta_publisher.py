"""The trainer's end of checkpoint transfer by differences: it writes the files of versions."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping

import jax

from rl_sync.types import Params
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.background_publisher import BackgroundPublisher
from rl_sync.weights.cells import DeviceRegions
from rl_sync.weights.deltas.artifact import FULL, Artifact
from rl_sync.weights.deltas.history import AddedVersion, VersionHistory
from rl_sync.weights.deltas.part_bytes import (
    CutVersion,
    itemsizes_of,
    on_host,
)
from rl_sync.weights.deltas.part_names import part_names, plain_name
from rl_sync.weights.deltas.version_files import (
    StoredArtifact,
    VersionFiles,
)
from rl_sync.weights.digest import digest_words, to_text
from rl_sync.weights.ends_interface import (
    WeightsTransferError,
)
from rl_sync.weights.locations import Location
from rl_sync.weights.parts import (
    Cutter,
    plan_manifest,
)

_OTHERS_SECS = 300.0
_log = logging.getLogger(__name__)


class DeltaFilesPublisher:
    """Writes versions in its own thread; the trainer only pays for a copy on device.

    Args:
      directory: the weights directory; versions of an earlier publisher are removed.
      params: abstract params in the trainer's shardings.
      run: tag of the run.
      chain: id of this publisher, the same in all processes of the trainer.
      expected: regions that explorers are expected to hold; see `plan_manifest`.
      keep: number of newest versions that readers may ask for.
      full_every: number of versions between two full copies.
      reader_expiry_secs: time after which a reader counts as dead.
      on_saved: called in a thread with each version, once it is readable.
      frame: files of a checkpoint of transformers besides its weights, by name.
      may_skip, timeout_secs, agree, agree_saving: see `BackgroundPublisher`.
      agree_wishes: lets the threads of the trainer's processes agree that serve wishes.
    """

    def __init__(
        self,
        directory: Location,
        params: Params,
        *,
        run: str,
        chain: str,
        expected: DeviceRegions = (),
        keep: int = 3,
        full_every: int = 20,
        reader_expiry_secs: float = 600.0,
        on_saved: Callable[[int, AddedVersion, float], None] = lambda version, added, secs: None,
        frame: Mapping[str, bytes] | None = None,
        may_skip: bool = False,
        timeout_secs: float = 300.0,
        agree: Agree = alone,
        agree_saving: Agree = alone,
        agree_wishes: Agree = alone,
    ) -> None:
        self._files = VersionFiles(directory)
        self._run, self._chain = run, chain
        self._manifest = plan_manifest(params, expected)
        self._names = part_names(self._manifest)
        self._cutter = Cutter(self._manifest, params)
        self._holders = sorted({part.holder for part in self._manifest.parts})
        self._holder = jax.process_index()
        self._history = VersionHistory(chain, self._holder, itemsizes_of(self._manifest))
        self._keep, self._full_every = keep, full_every
        self._reader_expiry_secs, self._on_saved = reader_expiry_secs, on_saved
        self._may_skip, self._timeout_secs = may_skip, timeout_secs
        self._agree_saving, self._agree_wishes = agree_saving, agree_wishes
        self._since_full: int | None = None
        self._bytes_since_full = 0
        self._writing = threading.Lock()
        self._closed = threading.Event()
        agree("the weights directory", lambda: self._begin(frame or {}))
        self._wishes = threading.Thread(target=self._serve, name="weights-wishes", daemon=True)
        self._wishes.start()
        self._queue: BackgroundPublisher[CutVersion] = BackgroundPublisher(
            self._save,
            str(self._files.root),
            may_skip=may_skip,
            timeout_secs=timeout_secs,
            agree=agree,
            agree_in_thread=agree_saving,
            awaited=lambda cut: cut.parts,
        )

    def publish(self, version: int, params: Params) -> None:
        """Cuts `params` into parts on the devices, without waiting; see `ends_interface.Publisher`.

        Raises:
          WeightsTimeoutError: the version before this one still waits to be written.
          WeightsTransferError: an earlier version could not be written.
        """
        self._queue.hand_over(version, CutVersion(self._cutter.cut(params), digest_words(params)))

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
            self._history.close()

    def _begin(self, frame: Mapping[str, bytes]) -> None:
        self._files.clear()
        for name, content in frame.items():
            self._files.write_frame(name, content)

    def _save(self, version: int, arrays: CutVersion) -> None:
        began = time.monotonic()
        parts = on_host(arrays.parts)
        with self._writing:
            added = self._history.add(version, lambda: to_text(arrays.digest), parts)
            delta = added.delta
            full = self._agree_saving("the kind of copy", lambda: self._needs_full(added))
            changes = self._agree_saving("whether it pays", lambda: self._pays(added))
            try:
                if delta is not None and changes and self._since_full is not None:
                    self._write(delta, added.dense_bytes, self._agree_saving)
                if full:
                    self._write(self._history.full(version), added.dense_bytes, self._agree_saving)
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
        return self._since_full + 1 >= self._full_every or chain >= added.dense_bytes

    def _pays(self, added: AddedVersion) -> bool:
        return added.delta is not None and added.delta.nbytes() < added.dense_bytes

    def _write(self, artifact: Artifact, dense_bytes: int, agree: Agree) -> None:
        """Writes an artifact, together with the trainer's other processes.

        Raises:
          OSError: the disk is full, or not writable.
        """
        payloads = {
            (name.part, name.number): self._history.payload(name)
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
            self._chain,
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
        """Deletes what no reader needs any more.

        Args:
          tight: whether room is short: then a slow reader has to take a full copy.
        """
        stored = self._files.stored()
        versions = sorted({one.version for one in stored})
        fulls = [one.version for one in stored if one.base == FULL]
        wanted = versions[-self._keep :]
        anchor = max((full for full in fulls if wanted and full <= wanted[0]), default=-1)
        slowest = min(self._files.held(self._reader_expiry_secs).values(), default=anchor)
        for one in stored:
            if one.base == FULL:
                old = one.version < (anchor if tight else min(anchor, max(slowest, 0)))
                is_newest = bool(fulls) and one.version == max(fulls)
                if old and not is_newest:
                    self._files.delete(one)
            elif one.version <= (anchor if tight else min(anchor, slowest)):
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
        versions = self._history.versions()
        if not versions:
            return
        full = self._history.full(versions[-1])
        try:
            self._write(full, full.nbytes(), self._agree_wishes)
        except OSError as error:
            _log.warning("A full copy that a reader asked for was not written: %s", error)

    def _await_wish(self) -> bool | None:
        while not self._closed.wait(self._files.poll_secs * 10):
            if self._files.take_wishes():
                return True
        return None
