"""Checksums of a directory's files, which reveal damage before the files are used.

They guard against mistakes and broken disks, not against an adversary.
"""

from __future__ import annotations

import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rl_sync.records.json_lines import JsonObject

SEAL = "files.json"
_BLOCK_BYTES = 1 << 22


def seal(directory: Path) -> None:
    """Writes the sizes and checksums of all files below a directory to `SEAL` in it."""
    names = sorted(
        os.path.relpath(os.path.join(root, name), directory)
        for root, _, files in os.walk(directory)
        for name in files
    )
    if SEAL in names:
        names.remove(SEAL)
    files = dict(zip(names, _checksums([directory / name for name in names]), strict=True))
    (directory / SEAL).write_text(json.dumps({"checksum": _of_text(files), "files": files}))


def damage(directory: Path) -> str | None:
    """Describes the damage of a sealed directory; None if it is unchanged."""
    try:
        sealed = json.loads((directory / SEAL).read_bytes())
        files = sealed["files"]
        if sealed["checksum"] != _of_text(files):
            return f"{SEAL} is damaged"
    except FileNotFoundError:
        return f"it lacks {SEAL}, or was saved by an earlier version, without checksums"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{SEAL} cannot be read ({type(error).__name__})"
    for name, (size, _) in files.items():  # Sizes first, because they cost nothing.
        try:
            found = (directory / name).stat().st_size
        except OSError:
            return f"it lacks {name}"
        if found != size:
            return f"{name} has {found} bytes instead of {size}"
    try:
        now = _checksums([directory / name for name in files])
    except OSError as error:
        return f"it cannot be read ({error})"
    for (name, before), after in zip(files.items(), now, strict=True):
        if before != after:
            return f"{name} has other content than was written"
    return None


def _checksums(paths: list[Path]) -> list[list[int]]:
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        return list(threads.map(_checksum, paths))


def _checksum(path: Path) -> list[int]:
    """Returns [bytes, CRC-32] of a file."""
    size = checksum = 0
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            checksum, size = zlib.crc32(block, checksum), size + len(block)
    return [size, checksum]


def _of_text(files: JsonObject) -> int:
    return zlib.crc32(json.dumps(files, sort_keys=True).encode())
