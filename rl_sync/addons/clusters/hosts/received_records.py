"""Keeps the launcher's copies of the files that processes on other machines write."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rl_sync.records.json_lines import JsonLinesWriter
from rl_sync.role_names import role_of
from rl_sync.workdir import Workdir


def places_of(workdir: Workdir, name: str) -> list[str]:
    """Returns the files of records of a process, relative to the work directory."""
    files = [workdir.log(name), workdir.usage / f"{name}.jsonl"]
    if name == role_of(name):  # The first process of a program writes these.
        files += [workdir.spans_of(name), workdir.tokens_of(name)]
    return [os.path.relpath(file, workdir) for file in files]


class ReceivedRecords:
    """Copies of files that grow elsewhere.

    Args:
      workdir: the launcher's work directory.
    """

    def __init__(self, workdir: Workdir):
        self._workdir = workdir

    def begin(self, names: Iterable[str], place: str) -> int:
        """Cuts off an unfinished line of a copy, and returns its size.

        Args:
          names, place: see `write`; it raises the same errors.
        """
        path = self._path(names, place)
        if path.suffix == ".jsonl":
            JsonLinesWriter(path).close()
        return path.stat().st_size if path.exists() else 0

    def write(
        self, names: Iterable[str], place: str, offset: int, content: bytes, is_cut: bool
    ) -> int:
        """Writes a part of a file; returns the size of the copy.

        A part beyond the end of the copy is not written, nor one whose bytes are there already.

        Args:
          names: processes whose files may be written.
          place, offset, content, is_cut: see `SendRecords`.

        Raises:
          ValueError: the file is none of these processes'.
          OSError: it cannot be written.
        """
        path = self._path(names, place)
        with open(path, "r+b" if path.exists() else "w+b") as file:
            size = file.seek(0, os.SEEK_END)
            if is_cut and offset < size:
                size = file.truncate(offset)
            if offset <= size < offset + len(content):
                file.seek(size)
                file.write(content[size - offset :])
                size = offset + len(content)
        return size

    def _path(self, names: Iterable[str], place: str) -> Path:
        if not any(place in places_of(self._workdir, name) for name in names):
            raise ValueError(f"{place} is no record of {', '.join(names)}.")
        path = Path(self._workdir, place)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
