"""A cache of the names of all settings and choices, for shell completion.

Reading them from the source takes seconds, because it imports JAX. The cache is a file in the
user's cache directory, which is rewritten when a source file has changed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import rl_sync


class Known(NamedTuple):
    """A setting: its meaning, the values that are offered, and whether it is a path."""

    meaning: str
    choices: list[str]
    is_path: bool


def settings() -> dict[str, Known]:
    """Returns all settings by name."""
    return {name: Known(*rest) for name, *rest in _contents()["settings"]}


def names(command: str) -> list[tuple[str, str]]:
    """Returns the names and meanings in a command's list; nothing for commands without a list."""
    return [(name, meaning) for name, meaning, _ in _contents()["lists"].get(command, [])]


def chosen_by(flag: str) -> list[tuple[str, str]]:
    """Returns the values of a flag that the lists offer, with their meanings.

    Args:
      flag: the flag, such as `--config.task.name=`.
    """
    lists = _contents()["lists"].values()
    return [
        (name, meaning) for one in lists for name, meaning, how in one if how == f"{flag}{name}"
    ]


@functools.cache
def _contents() -> dict[str, Any]:
    stamp, path = _stamp(), _path()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept: dict[str, Any] = json.loads(path.read_text())
        if kept["stamp"] == stamp:
            return kept
    made = {"stamp": stamp, **_read()}
    with contextlib.suppress(OSError):  # Without the file, the next Tab is slow, too.
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(made))
    return made


def _read() -> dict[str, Any]:
    """Reads everything from the source."""
    from rl_sync.launcher.catalogs import CATALOGS
    from rl_sync.setting import sections
    from rl_sync.settings.run_settings import RunSettings

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
    """Returns a fingerprint of the source files."""
    folders = os.walk(os.path.dirname(rl_sync.__file__), followlinks=True)
    files = [f"{at}/{name}" for at, _, names in folders for name in names if name.endswith(".py")]
    told = [f"{path} {(of := os.stat(path)).st_size} {of.st_mtime_ns}" for path in sorted(files)]
    return hashlib.sha256("\n".join([sys.version, *told]).encode()).hexdigest()


def _path() -> Path:
    """Returns the file of this installation; each installation has its own."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    here = hashlib.sha256(f"{__file__} {sys.version}".encode()).hexdigest()[:12]
    return Path(cache, "rl_sync", f"names-{here}.json")
