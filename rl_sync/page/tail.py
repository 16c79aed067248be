"""Incremental reader of a file of JSON lines that another program appends to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import orjson

MOST_BYTES = 32 << 20
"""The most that one reading takes, unless a single line is longer."""

_SEAL_BYTES = 64


class FileLine(NamedTuple):
    """A line of a file: its place and its object.

    Attributes:
      offset, size: in bytes, without the line break.
    """

    offset: int
    size: int
    record: dict[str, Any]


class NewLines(NamedTuple):
    """The lines that are new since the last reading.

    Attributes:
      is_anew: whether the file was replaced or cut, so that all earlier lines are void.
    """

    lines: list[FileLine]
    is_anew: bool


class Tail:
    """Reads what is new in a file, and notices if the file was cut or replaced.

    An unfinished last line waits until it is whole. Broken lines are left out. A path that leads
    out of `root`, as by a symbolic link, is treated like a file that does not exist.

    Args:
      path: the file; it need not exist yet.
      root: the directory that it must lie in.
    """

    def __init__(self, path: Path, root: Path):
        self._path, self._root = path, root
        self._offset = 0
        self._inode: int | None = None
        self._seal = b""

    def read(self, most_bytes: int = MOST_BYTES) -> NewLines:
        """Returns the whole lines since the last reading; at most about `most_bytes` of them."""
        try:
            if not is_inside(self._path, self._root):
                raise FileNotFoundError(self._path)
            with open(self._path, "rb") as file:
                is_anew = self._is_another(file)
                if is_anew:
                    self._offset, self._seal = 0, b""
                file.seek(self._offset)
                chunk = file.read(most_bytes)
                while b"\n" not in chunk and (more := file.read(most_bytes)):
                    chunk += more
        except OSError:
            return NewLines([], self._forget())
        whole = chunk[: chunk.rfind(b"\n") + 1]
        lines = _parsed(whole, self._offset)
        self._offset += len(whole)
        self._seal = (self._seal + whole)[-_SEAL_BYTES:]
        return NewLines(lines, is_anew)

    def _is_another(self, file: Any) -> bool:
        """Says whether the file is not the one that was read before, or lacks what was read."""
        inode, known = os.fstat(file.fileno()).st_ino, self._inode
        self._inode = inode
        if known is None:
            return False
        file.seek(self._offset - len(self._seal))
        return inode != known or file.read(len(self._seal)) != self._seal

    def _forget(self) -> bool:
        was_read = self._inode is not None
        self._offset, self._inode, self._seal = 0, None, b""
        return was_read


def is_inside(path: Path, root: Path) -> bool:
    """Says whether a path, with its links followed, lies in a directory."""
    return path.resolve().is_relative_to(root.resolve())


def _parsed(whole: bytes, offset: int) -> list[FileLine]:
    lines = []
    for text in whole.split(b"\n")[:-1]:
        try:
            record = orjson.loads(text)
        except ValueError:
            record = None
        if isinstance(record, dict):
            lines.append(FileLine(offset, len(text), record))
        offset += len(text) + 1
    return lines
