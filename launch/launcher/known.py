"""Names of all settings, and of what there is to choose, from a file that is quick to read.

To read them from the source takes seconds, for it imports JAX. The file lies in the user's cache
directory, and is made anew when any file of the source is another than it was.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Known(NamedTuple):
    """A setting: its meaning, the values that are offered, and whether it is a path."""

    meaning: str
    choices: tuple[str, ...]
    is_path: bool


def settings() -> dict[str, Known]:
    """Returns all settings by name."""
    return _settings(_contents())


def names(command: str) -> list[tuple[str, str]]:
    """Returns the names and meanings in the list that a command prints; none for others."""
    return [(name, meaning) for name, meaning, _ in _contents()["lists"].get(command, [])]


def chosen_by(flag: str) -> list[tuple[str, str]]:
    """Returns the values that a flag takes by what the lists say, with their meanings.

    Args:
      flag: such as `--config.task.name=`.
    """
    lists = _contents()["lists"].values()
    return [
        (name, meaning) for one in lists for name, meaning, how in one if how == f"{flag}{name}"
    ]


def _settings(contents: dict[str, Any]) -> dict[str, Known]:
    return {
        name: Known(meaning, tuple(choices), is_path)
        for name, meaning, choices, is_path in contents["settings"]
    }


@functools.cache
def _contents() -> dict[str, Any]:
    stamp, path = _stamp(), _path()
    try:
        kept: dict[str, Any] = json.loads(path.read_text())
        if kept["stamp"] == stamp:
            return kept
    except (OSError, ValueError, KeyError, TypeError):
        pass
    made = {"stamp": stamp, **_read()}
    _keep(path, json.dumps(made))
    return made


def _read() -> dict[str, Any]:
    """Reads everything from the source."""
    from rl_sync.launcher.catalogs import CATALOGS
    from rl_sync.setting import sections
    from rl_sync.settings.run import RunSettings

    entries = [entry for section in sections(RunSettings) for entry in section.entries]
    return {
        "settings": [
            [
                entry.name,
                entry.setting.meaning,
                ["true", "false"] if entry.kind is bool else entry.setting.choices,
                entry.setting.is_path,
            ]
            for entry in entries
        ],
        "lists": {
            command: [[one.name, one.meaning, one.choose] for one in catalog.read()]
            for command, catalog in CATALOGS.items()
        },
    }


def _stamp() -> str:
    """Returns a text that is another one when a file of the source is."""
    import rl_sync

    digest = hashlib.sha256(sys.version.encode())
    for path, size, time in sorted(_files(os.path.dirname(rl_sync.__file__))):
        digest.update(f"{path} {size} {time}\n".encode())
    return digest.hexdigest()


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                found = entry.stat()
                yield entry.path, found.st_size, found.st_mtime_ns
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _files(entry.path)


def _path() -> Path:
    """Returns the file of this installation; there may be several."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    here = hashlib.sha256(f"{__file__} {sys.version}".encode()).hexdigest()[:12]
    return Path(cache, "rl_sync", f"names-{here}.json")


def _keep(path: Path, text: str) -> None:
    """Writes the file; without it the next question takes as long as this one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError:
        pass
