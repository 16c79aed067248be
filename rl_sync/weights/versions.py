"""The directory of published versions: writing, reading and deleting them.

    <directory>/version_00000012/        arrays, possibly still incomplete
    <directory>/version_00000012.ready   marks them as complete
    <directory>/readers/<name>@12@<time> marks that a reader has read the version since <time>

The directory is on a file system that all processes share, or in a bucket of an object store.
Processes only check whether a name exists. Nothing is renamed, since a bucket cannot rename. No
file's content matters, since on a file system it may be half written.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

import fsspec
from etils import epath

from rl_sync.clock import now_secs
from rl_sync.weights.locations import Location, absolute, is_remote

_VERSION = re.compile(r"version_(\d{8,})")
_READY = ".ready"
_READERS = "readers"
_PROBE = "probe"
_HOLD = re.compile(r".+@(\d+)@([\d.]+)")
_POLL_SECS = 0.02
_REMOTE_POLL_SECS = 0.5


class VersionDirectory:
    """The files of a directory of versions, shared by one publisher and any number of readers.

    Args:
      root: the directory; it is created if it does not exist.

    Attributes:
      poll_secs: time between two checks for something that is not there yet.

    Raises:
      ImportError: a package for the object store is not installed; the message names it.
    """

    def __init__(self, root: Location) -> None:
        remote = is_remote(root)
        self.root = absolute(root)
        self.poll_secs = _REMOTE_POLL_SECS if remote else _POLL_SECS
        # Listings are not cached, since other processes write here too.
        self._files, self._at = fsspec.core.url_to_fs(
            os.fspath(self.root), use_listings_cache=False
        )
        if not remote:  # A bucket has no directories.
            self._files.makedirs(f"{self._at}/{_READERS}", exist_ok=True)

    def path(self, version: int) -> epath.Path:
        """Returns the directory of a version's arrays, which may not exist."""
        return self.root / _name(version)

    def versions(self) -> list[int]:
        """Returns the complete versions, oldest first."""
        names = (name.removesuffix(_READY) for name in self._names() if name.endswith(_READY))
        return sorted(int(match[1]) for match in map(_VERSION.fullmatch, names) if match)

    def has(self, version: int) -> bool:
        """Says whether a version exists and is complete."""
        return self._files.exists(self._ready(version))

    def announce(self, version: int) -> None:
        """Marks a version as complete."""
        self._touch(self._ready(version))

    @contextlib.contextmanager
    def held(self, reader: str, version: int) -> Iterator[None]:
        """Protects a version from deletion within the block.

        Raises:
          FileNotFoundError: the version does not exist, or no longer exists.
        """
        mark = f"{self._at}/{_READERS}/{reader}@{version}@{now_secs():.3f}"
        self._touch(mark)
        try:
            if not self.has(version):
                raise FileNotFoundError(f"Version {version} is not in {self.root} any more.")
            yield
        finally:
            self._remove(mark)

    def held_versions(self, expiry_secs: float) -> set[int]:
        """Returns the versions that a reader has held for less than `expiry_secs`."""
        holds = map(_HOLD.fullmatch, self._names(_READERS))
        now = now_secs()
        return {int(hold[1]) for hold in holds if hold and now - float(hold[2]) < expiry_secs}

    def retain(self, keep: int, expiry_secs: float) -> None:
        """Deletes all versions except the `keep` newest and those that readers hold."""
        old = self.versions()[:-keep]
        held = self.held_versions(expiry_secs)
        for version in old:
            if version not in held:
                self._delete_unless_held(version, expiry_secs)

    def delete(self, version: int) -> None:
        """Deletes a version, even if a reader holds it."""
        self._withdraw(version)
        self._remove(f"{self._at}/{_name(version)}")

    def sweep(self) -> None:
        """Deletes versions that a killed publisher left half written or half deleted."""
        names = set(self._names())
        for name in names:
            if _VERSION.match(name) and not name.endswith(_READY) and name + _READY not in names:
                self._remove(f"{self._at}/{name}")

    def clear(self) -> None:
        """Deletes everything after a test write; no process may use the directory meanwhile."""
        probe = f"{self._at}/{_PROBE}"
        self._touch(probe)
        self._remove(probe)
        for version in self.versions():
            self._withdraw(version)
        self.sweep()
        for name in self._names(_READERS):
            self._remove(f"{self._at}/{_READERS}/{name}")

    def _delete_unless_held(self, version: int, expiry_secs: float) -> None:
        self._withdraw(version)
        # A reader marks a version and then checks that it still exists. If it marked the version
        # after our first look, and checked before we withdrew it, this second look sees the mark.
        if version in self.held_versions(expiry_secs):
            self.announce(version)
        else:
            self._remove(f"{self._at}/{_name(version)}")

    def _withdraw(self, version: int) -> None:
        self._remove(self._ready(version))

    def _ready(self, version: int) -> str:
        return f"{self._at}/{_name(version)}{_READY}"

    def _names(self, below: str = "") -> list[str]:
        try:
            paths = self._files.ls(f"{self._at}/{below}".rstrip("/"), detail=False)
        except FileNotFoundError:  # An empty directory in a bucket does not exist.
            return []
        return [path.rstrip("/").rpartition("/")[2] for path in paths]

    def _touch(self, path: str) -> None:
        self._files.pipe_file(path, b"\n")

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm(path, recursive=True)


def _name(version: int) -> str:
    return f"version_{version:08d}"
