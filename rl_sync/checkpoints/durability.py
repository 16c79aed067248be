"""Flushes files to the disk, so that they outlive a crash of the machine."""

from __future__ import annotations

import os
from pathlib import Path


def flush(directory: Path) -> None:
    """Flushes all files and folders below a directory."""
    for root, _, names in os.walk(directory):
        for name in names:
            _flush(Path(root, name))
        _flush(Path(root))


def flush_directory(directory: Path) -> None:
    """Flushes the names of a directory's files, after renames in it."""
    _flush(directory)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
