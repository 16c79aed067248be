"""Checkpoint transfer: the trainer saves versions to a directory, explorers poll it.

Trainer and explorers are independent JAX programs that share only the directory. So explorers may
die, restart and join at any time. The directory may be in a bucket (`gs://…`).
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rl_sync.messages.events import VersionPublished
from rl_sync.messages.master_calls import Happened
from rl_sync.schedule import SyncSchedule
from rl_sync.transfers.ends import Ends, EndSite, ExplorerEnd, Offering
from rl_sync.types import Params
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.background_publisher import BackgroundPublisher
from rl_sync.weights.copies import copied
from rl_sync.weights.digest import digest, digest_words, to_text
from rl_sync.weights.ends_interface import (
    WeightsMismatchError,
    WeightsTimeoutError,
    wanted_text,
)
from rl_sync.weights.locations import Location
from rl_sync.weights.storage import ArrayStorage, flatten_named, placement, unflatten_named
from rl_sync.weights.versions import VersionDirectory
from rl_sync.workdir import Workdir

LEAST_KEPT = 3
"""Minimum number of versions to keep. With fewer, readers would keep finding theirs deleted."""

_PARAMS = "params"
_DIGEST = "digest"
_ATTEMPTS = 3

_log = logging.getLogger(__name__)


class CheckpointPublisher:
    """Saves versions in its own thread; the trainer only pays for a copy on device.

    See `BackgroundPublisher` for the versions that wait.

    Args:
      directory: the weights directory; unfinished versions of a killed publisher are removed.
      keep: number of newest versions to keep; at least `LEAST_KEPT`. A version that an explorer is
        reading is kept as well.
      may_skip: whether a newer version may replace one whose save has not begun. Use it for latest
        pulls, but not for exact pulls, which need every version.
      timeout_secs: deadline of `publish` for its turn, and of `close` for the last save.
      reader_expiry_secs: time after which a reader counts as dead, so that its version may be
        deleted.
      resume_from: version that a trainer resumes from; newer versions, left by its earlier run, are
        deleted.
      on_saved: function that the saving thread calls with each version and the seconds that its
        save took, counted from the end of its computation.

    Raises:
      ValueError: `keep` is too small.
    """

    def __init__(
        self,
        directory: Location,
        *,
        keep: int = LEAST_KEPT,
        may_skip: bool = False,
        timeout_secs: float = 300.0,
        reader_expiry_secs: float = 600.0,
        resume_from: int | None = None,
        on_saved: Callable[[int, float], None] | None = None,
        processes: Iterable[int] | None = None,
        agree: Agree = alone,
        agree_saving: Agree = alone,
    ) -> None:
        if keep < LEAST_KEPT:
            raise ValueError(
                f"keep={keep} versions is too few: an explorer could find the one that it reads"
                f" deleted. Keep at least {LEAST_KEPT}."
            )
        self._directory = VersionDirectory(directory)
        self._agree_saving = agree_saving
        self._processes = processes
        agree("the weights directory", lambda: self._tidy(resume_from))
        self._keep = keep
        self._reader_expiry_secs = reader_expiry_secs
        self._on_saved = on_saved
        self._storage: ArrayStorage | None = None
        self._queue: BackgroundPublisher[Mapping[str, Array]] = BackgroundPublisher(
            self._save,
            str(self._directory.root),
            may_skip=may_skip,
            timeout_secs=timeout_secs,
            agree=agree,
            agree_in_thread=agree_saving,
            on_end=self._close_storage,
        )

    def publish(self, version: int, params: Params) -> None:
        """Copies `params` on the device and queues the copy; see `ends_interface.Publisher`.

        It does not wait for the computation of `params`. A version that exists already is replaced.

        Raises:
          WeightsTimeoutError: the version before this one still waits to be saved.
          WeightsTransferError: an earlier version could not be saved.
        """
        arrays = flatten_named({_PARAMS: copied(params), _DIGEST: digest_words(params)})
        self._queue.hand_over(version, arrays)

    def close(self) -> None:
        """Waits until all versions are saved, and stops the saving thread.

        Raises:
          WeightsTimeoutError: the saves take longer than the deadline.
          WeightsTransferError: a version could not be saved.
        """
        self._queue.close()

    def _tidy(self, resume_from: int | None) -> None:
        """Removes unfinished versions, and versions newer than the resumed one."""
        self._directory.sweep()
        if resume_from is not None:
            for version in self._directory.versions():
                if version > resume_from:
                    self._directory.delete(version)

    def _save(self, version: int, arrays: Mapping[str, Array]) -> None:
        if self._storage is None:  # Orbax is loaded in this thread.
            self._storage = ArrayStorage("weights", self._processes)
        start = time.monotonic()
        self._agree_saving("room", lambda: self._make_room(version))
        self._storage.write(self._directory.path(version), arrays)
        self._agree_saving("saved", lambda: self._finish(version, start))

    def _close_storage(self) -> None:
        if self._storage is not None:
            self._storage.close()

    def _make_room(self, version: int) -> None:
        if self._directory.has(version):
            self._directory.delete(version)

    def _finish(self, version: int, start: float) -> None:
        self._directory.announce(version)
        if self._on_saved is not None:
            self._on_saved(version, time.monotonic() - start)
        self._directory.retain(self._keep, self._reader_expiry_secs)


class CheckpointPuller:
    """Polls a weights directory, and restores versions directly into the explorer's sharding.

    Args:
      directory: the publisher's weights directory.
      params: abstract params in the shardings to restore into.
      reader: name that no other running puller of the directory has; by default host and process.
      check_digest: whether to compare the digest of the restored weights with the published one.
      processes: the explorer's processes, by their indices in the cluster; by default only this
        process.
      agree: lets the explorer's processes agree; see `Agree`.
    """

    def __init__(
        self,
        directory: Location,
        params: Params,
        *,
        reader: str | None = None,
        check_digest: bool = True,
        processes: Iterable[int] | None = None,
        agree: Agree = alone,
    ) -> None:
        self._directory = VersionDirectory(directory)
        self._stored = {
            _PARAMS: jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placement(x)), params
            ),
            _DIGEST: jax.ShapeDtypeStruct((2,), jnp.uint32),
        }
        self._reader = reader or f"{socket.gethostname()}-{os.getpid()}"
        self._check_digest = check_digest
        self._agree = agree
        self._storage = ArrayStorage("weights", processes)

    def pull(
        self, *, exactly: int | None = None, at_least: int | None = None, timeout_secs: float
    ) -> tuple[int, Params]:
        """Waits for a version and restores it; see `ends_interface.Puller`.

        A failed read is repeated; if any version will do, with the newest one.

        Raises:
          WeightsTimeoutError: no such version was published in time.
          WeightsMismatchError: a version's digest stays wrong after repeated reads.
          ValueError: the versions belong to another model than `params`.
        """
        wanted = wanted_text(exactly, at_least)
        deadline = time.monotonic() + timeout_secs
        failures: collections.Counter[int] = collections.Counter()
        while True:
            version, late = self._agree(
                "a version",
                lambda: (self._choose(exactly, at_least), time.monotonic() >= deadline),
            )
            if version is not None:
                try:
                    return version, self._read(version)
                except Exception as error:
                    failures[version] += 1
                    gone = not self._directory.has(version)
                    if failures[version] >= _ATTEMPTS and not gone:
                        raise
                    _log.warning("Reading version %d failed, trying again: %s", version, error)
            if late:
                there = ", ".join(map(str, self._directory.versions())) or "none"
                raise WeightsTimeoutError(
                    f"Explorer {self._reader} waited {timeout_secs:.1f} s for {wanted} of the"
                    f" weights in {self._directory.root}. Versions there: {there}. Either the"
                    " trainer is slower than the deadline, or it has stopped."
                )
            time.sleep(self._directory.poll_secs)

    def newest(self, at_least: int = -1, timeout_secs: float = 0.0) -> int:
        """See `ends_interface.Puller`."""
        return self._agree("newest", lambda: self._await(at_least, timeout_secs))

    def close(self) -> None:
        """Frees the resources of Orbax."""
        self._storage.close()

    def _await(self, at_least: int, timeout_secs: float) -> int:
        deadline = time.monotonic() + timeout_secs
        while (newest := self._newest()) < at_least and time.monotonic() < deadline:
            time.sleep(self._directory.poll_secs)
        return newest

    def _newest(self) -> int:
        return max(self._directory.versions(), default=-1)

    def _choose(self, exactly: int | None, at_least: int | None) -> int | None:
        if exactly is not None:
            return exactly if self._directory.has(exactly) else None
        newest = self._newest()
        return newest if newest >= (at_least or 0) else None

    def _read(self, version: int) -> Params:
        path = self._directory.path(version)
        with contextlib.ExitStack() as holding:

            def hold() -> None:
                holding.enter_context(self._directory.held(self._reader, version))

            self._agree("hold", hold)
            arrays = self._storage.read(path, flatten_named(self._stored))
        stored = unflatten_named(self._stored, arrays)
        params = stored[_PARAMS]
        if self._check_digest:
            published, received = to_text(stored[_DIGEST]), digest(params)
            if published != received:
                raise WeightsMismatchError(version, published, received)
        return params


class CheckpointTrainerEnd(Offering):
    """Saves versions in the background, and tells the master when each is readable.

    Args:
      site: the trainer's site.
      schedule: decides how many versions are kept, and whether every version is needed.
    """

    def __init__(self, site: EndSite, schedule: SyncSchedule):
        session = site.session
        publisher = CheckpointPublisher(
            _directory(site),
            keep=schedule.versions_kept,
            may_skip=schedule.pull == "latest",
            timeout_secs=session.settings.launch.wait_secs,
            resume_from=schedule.start,
            on_saved=self._saved,
            processes=site.resources.processes,
            agree=session.agree,
            agree_saving=session.team.thread("weights"),
        )
        super().__init__(site, schedule, publisher)

    def _saved(self, version: int, secs: float) -> None:
        now = self._session.spans.now()
        self._session.spans.record(self._kind, now - secs, now, version=version, background=True)
        self._session.tell(Happened(VersionPublished(version)))


def _explorer(site: EndSite) -> ExplorerEnd:
    puller = CheckpointPuller(
        _directory(site),
        site.abstract_params,
        check_digest=site.verify,
        processes=site.resources.processes,
        agree=site.session.agree,
    )
    return ExplorerEnd(puller)


def _directory(site: EndSite) -> str:
    settings = site.session.settings
    return settings.weights_directory(Workdir(settings.workdir))


def _published_bytes(version: int, schedule: SyncSchedule) -> int:
    """Returns the bytes of the version that is saved, and of the host's copy.

    If steps continue meanwhile, two more versions wait, and one is being written.
    """
    return (5 if schedule.pull == "latest" else 2) * version


ENDS = Ends(
    trainer=CheckpointTrainerEnd,
    explorer=_explorer,
    published_bytes=_published_bytes,
    arriving_bytes=lambda version: version,  # Files are read to host memory first.
)
