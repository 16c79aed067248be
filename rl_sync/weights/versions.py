"""The directory of published versions: which there are, who reads which, and what may go.

    <directory>/version_00000012/     complete where it exists (it appears by rename)
    <directory>/readers/<name>.json   what a reader reads just now: {"version": 12, "time": …}

A name that starts with a dot, or contains Orbax's mark of a temporary directory, is work in
progress or on its way out.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from rl_sync.weights.storage import TEMPORARY

_NAME = re.compile(r"version_(\d{8,})")
_READERS = "readers"
_TRASH = ".deleted-"


class VersionDirectory:
    """The files of a directory of versions, shared by one publisher and any number of readers.

    Attributes:
      root: the directory; it is made when it does not exist.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        (self.root / _READERS).mkdir(parents=True, exist_ok=True)

    def path(self, version: int) -> Path:
        """Where a version is, or would be."""
        return self.root / f"version_{version:08d}"

    def versions(self) -> list[int]:
        """The complete versions, oldest first."""
        matches = (_NAME.fullmatch(name) for name in os.listdir(self.root))
        return sorted(int(match[1]) for match in matches if match)

    @contextlib.contextmanager
    def held(self, reader: str, version: int) -> Iterator[None]:
        """Keeps a version from being deleted within the block."""
        marker = self.root / _READERS / f"{reader}.json"
        temporary = marker.with_name(f".{marker.name}.{os.getpid()}")
        temporary.write_text(json.dumps({"version": version, "time": time.time()}))
        temporary.rename(marker)
        try:
            yield
        finally:
            marker.unlink(missing_ok=True)

    def held_versions(self, expiry_secs: float) -> set[int]:
        """The versions that some reader has held for less than `expiry_secs`."""
        versions = set()
        for marker in (self.root / _READERS).glob("[!.]*.json"):
            with contextlib.suppress(FileNotFoundError):  # its reader has just finished
                hold = json.loads(marker.read_text())
                if time.time() - hold["time"] < expiry_secs:
                    versions.add(hold["version"])
        return versions

    def retain(self, keep: int, expiry_secs: float) -> None:
        """Deletes all versions but the `keep` newest and those that are held."""
        old = self.versions()[:-keep]
        held = self.held_versions(expiry_secs)
        for version in old:
            if version not in held:
                self._delete_unless_held(version, expiry_secs)

    def delete(self, version: int) -> None:
        """Deletes a version, whoever holds it."""
        shutil.rmtree(self._hide(version))

    def sweep(self) -> None:
        """Deletes what a killed publisher left behind half written or half deleted."""
        for name in os.listdir(self.root):
            if name.startswith(_TRASH) or TEMPORARY in name:
                shutil.rmtree(self.root / name, ignore_errors=True)

    def _delete_unless_held(self, version: int, expiry_secs: float) -> None:
        hidden = self._hide(version)
        # A reader marks what it reads and then looks whether it is still there. One that marked it
        # after we looked, and looked before we hid it, is seen by looking once more.
        if version in self.held_versions(expiry_secs):
            hidden.rename(self.path(version))
        else:
            shutil.rmtree(hidden)

    def _hide(self, version: int) -> Path:
        hidden = self.root / f"{_TRASH}{version:08d}"
        shutil.rmtree(hidden, ignore_errors=True)
        self.path(version).rename(hidden)
        return hidden
