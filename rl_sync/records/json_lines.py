"""Files of JSON lines: a writer that survives a crash, and a reader that follows a growing file.

The writer flushes each line immediately. One reader reads whole files and follows growing ones.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson

from rl_sync.isolation.machine_limits import way_out

JsonObject = dict[str, Any]
"""An object of JSON: a line of a run's records, or a part of one."""

MOST_BYTES = 256 << 10
"""Maximum number of bytes of one reading, unless a single line is longer.

Objects of JSON take ten times the memory of their text.
"""

_BLOCK_BYTES = 65536
_SEAL_BYTES = 64
_ALL = -1
_log = logging.getLogger(__name__)


class RecordsError(OSError):
    """Raised if vital records cannot be written; the message has the file and the reason."""


def remedy(error: OSError) -> str:
    """Returns the remedy for records that cannot be written, as an imperative clause."""
    return way_out(error) or "make the file writable"


def plain(value: object) -> Any:
    """Converts a value for JSON: NumPy and JAX values to numbers and lists, NaN to None.

    Infinities become None too, since JSON cannot express them. Mapping keys become strings.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return [plain(item) for item in sorted(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return plain(np.asarray(value).tolist())


def encoded(record: Mapping[str, Any]) -> bytes:
    """Encodes an object as a line of JSON, without the line break; see `plain`."""
    return json.dumps(plain(record), separators=(",", ":"), allow_nan=False).encode()


class JsonLinesWriter:
    """Appends objects to a file, from any thread; each becomes one whole line or nothing.

    An unfinished line is cut off: an earlier writer leaves one if it is killed, this writer if the
    disk is full. So only the last line of a file can be incomplete.

    Args:
      path: the file.
      vital: whether a line that cannot be written is an error. If not, the writer warns once,
        drops lines, and continues as soon as the file can be written again.
    """

    def __init__(self, path: str | os.PathLike[str], *, vital: bool = True):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(self.path)
        self._vital = vital
        self._lost = 0
        self._torn_at: int | None = None
        self._lock = threading.Lock()
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends one object.

        Raises:
          ValueError: the writer is closed.
          RecordsError: the line cannot be written, and the file is vital.
        """
        self.write_all([record])

    def write_all(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Appends objects, at once; raises what `write` raises."""
        self.write_encoded([*map(encoded, records)])

    def write_encoded(self, lines: Sequence[bytes]) -> int:
        """Appends already encoded objects, without line breaks, at once.

        Returns:
          The number of bytes; 0 if they could not be written.

        Raises:
          ValueError, RecordsError: as `write`.
        """
        encoded = b"".join(line + b"\n" for line in lines)
        with self._lock:
            try:
                self._append(encoded)
            except OSError as error:
                self._give_up(error, len(lines))
                return 0
            self._recovered()
        return len(encoded)

    def close(self) -> None:
        """Closes the file; closing twice is fine."""
        with self._lock:
            self._file.close()

    def _append(self, lines: bytes) -> None:
        if self._torn_at is not None:
            self._file.truncate(self._torn_at)
            self._torn_at = None
        end = self._file.seek(0, os.SEEK_END)
        left = memoryview(lines)
        try:
            while left:  # A disk may take part of the data, and fail at the next write.
                left = left[self._file.write(left) :]
        except OSError:
            self._torn_at = end
            with contextlib.suppress(OSError):  # If it fails, it is cut before the next line.
                self._file.truncate(end)
                self._torn_at = None
            raise

    def _give_up(self, error: OSError, count: int) -> None:
        """Reports that lines are lost."""
        cause = f"{self.path} cannot be written: {error.strerror or error}"
        if self._vital:
            raise RecordsError(
                f"{cause}. The run relies on these records: {remedy(error)}, and run it again."
            ) from error
        if not self._lost:
            _log.warning("%s. The run goes on, and leaves out what belongs there.", cause)
        self._lost += count

    def _recovered(self) -> None:
        if self._lost:
            _log.warning("%s is written again; it lacks %d lines.", self.path, self._lost)
        self._lost = 0


class FileLine(NamedTuple):
    """A line of a file: its place and its object.

    Attributes:
      number: the number of the line, from 1.
      offset, size: in bytes, without the line break.
    """

    number: int
    offset: int
    size: int
    record: JsonObject


class NewLines(NamedTuple):
    """The new lines since the last reading.

    Attributes:
      size: number of bytes read, including broken lines.
      is_anew: whether the file was replaced, cut or deleted, so that all earlier lines are void.
      broken: number of each line that is not a JSON object, and the reason.
    """

    lines: list[FileLine]
    size: int
    is_anew: bool
    broken: list[tuple[int, str]]


class JsonLinesReader:
    """Reads the new lines of a file, and notices if the file was cut or replaced.

    An unfinished last line waits until it is whole. Broken lines are left out.

    Args:
      path: the file; it need not exist yet.
      root: directory that the file must lie in. A path that leads out of it, as by a symbolic
        link, is treated like a file that does not exist. None allows any path.
      offset: bytes to leave out, up to the end of a line.
    """

    def __init__(self, path: str | os.PathLike[str], root: Path | None = None, *, offset: int = 0):
        self._path, self._root = Path(path), root
        self._offset, self._number = offset, 0
        self._inode: int | None = None
        self._seal = b""

    def read(self, most_bytes: int = MOST_BYTES) -> NewLines:
        """Returns the complete lines since the last reading, at most about `most_bytes` at once."""
        try:
            return self._read(most_bytes)
        except OSError:
            was_read = self._inode is not None
            self._begin(None)
            return NewLines([], 0, was_read, [])

    def read_strictly(self, most_bytes: int = MOST_BYTES) -> NewLines:
        """Returns what `read` returns.

        Raises:
          OSError: the file cannot be read.
        """
        return self._read(most_bytes)

    def read_all(self) -> NewLines:
        """Returns all lines from here on; raises what `read_strictly` raises."""
        return self._read(_ALL)

    def _read(self, most_bytes: int) -> NewLines:
        if self._root is not None and not is_inside(self._path, self._root):
            raise FileNotFoundError(self._path)
        with open(self._path, "rb") as file:
            is_anew = self._is_another(file)
            if is_anew:
                self._begin(self._inode)
            file.seek(self._offset)
            chunk = file.read(most_bytes)
            while b"\n" not in chunk and (more := file.read(most_bytes)):
                chunk += more
        whole = chunk[: chunk.rfind(b"\n") + 1]
        lines, broken = self._parsed(whole)
        self._seal = (self._seal + whole)[-_SEAL_BYTES:]
        return NewLines(lines, len(whole), is_anew, broken)

    def _is_another(self, file: BinaryIO) -> bool:
        """Says whether the file was replaced, or lacks lines that were read."""
        inode, known = os.fstat(file.fileno()).st_ino, self._inode
        self._inode = inode
        if known is None:
            return False
        file.seek(self._offset - len(self._seal))
        return inode != known or file.read(len(self._seal)) != self._seal

    def _begin(self, inode: int | None) -> None:
        self._offset, self._number, self._inode, self._seal = 0, 0, inode, b""

    def _parsed(self, whole: bytes) -> tuple[list[FileLine], list[tuple[int, str]]]:
        lines, broken = [], []
        for text in whole.split(b"\n")[:-1]:
            self._number += 1
            try:
                record = orjson.loads(text)
                if not isinstance(record, dict):
                    raise ValueError(f"it is {record!r}")
            except ValueError as error:
                broken.append((self._number, str(error)))
            else:
                lines.append(FileLine(self._number, self._offset, len(text), record))
            self._offset += len(text) + 1
        return lines, broken


class JsonLinesFolder:
    """Follows all files of JSON lines in a folder; see `JsonLinesReader`.

    Args:
      folder: the folder; it need not exist yet.
      root: directory that all files must lie in; None allows any.
    """

    def __init__(self, folder: Path, root: Path | None = None):
        self._folder, self._root = folder, root
        self._readers: dict[Path, JsonLinesReader] = {}

    def read(self) -> Iterator[tuple[Path, NewLines]]:
        """Yields each file with its new lines, ordered by name.

        A deleted file has no lines, and its `NewLines.is_anew` is true.
        """
        for path in sorted({*self._readers, *self._folder.glob("*.jsonl")}):
            reader = self._readers.setdefault(path, JsonLinesReader(path, self._root))
            yield path, reader.read()


def is_inside(path: Path, root: Path) -> bool:
    """Says whether a path lies in a directory after its links are resolved."""
    return path.resolve().is_relative_to(root.resolve())


def read_json_lines(path: str | os.PathLike[str], *, strict: bool = True) -> list[JsonObject]:
    """Reads all whole lines; see `each_json_line`."""
    return [*each_json_line(path, strict=strict)]


def each_json_line(path: str | os.PathLike[str], *, strict: bool = True) -> Iterator[JsonObject]:
    """Yields all whole lines, of which few are in memory at once.

    An unfinished last line of a killed writer is left out.

    Args:
      strict: whether a broken line in the middle is an error. If not, such lines are left out, and
        a warning gives their number.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a line in the middle is not a JSON object; the message gives its number.
    """
    reader, broken = JsonLinesReader(path), list[tuple[int, str]]()
    while (news := reader.read_strictly()).size:
        broken += news.broken
        if broken and strict:
            number, why = broken[0]
            raise ValueError(f"{path}, line {number} is not a JSON object: {why}")
        for line in news.lines:
            yield line.record
    warn_of_broken(path, broken)


def warn_of_broken(path: str | os.PathLike[str], broken: Sequence[tuple[int, str]]) -> None:
    """Warns of skipped lines, if there are any; see `NewLines`."""
    if broken:
        _log.warning(
            "%s: %d lines are broken and left out, the first of them line %d.",
            path,
            len(broken),
            broken[0][0],
        )


def read_object(path: Path, root: Path | None = None) -> JsonObject:
    """Reads a file with one JSON object; empty if there is none, or it cannot be read.

    Args:
      root: directory that the file must lie in; None allows any.
    """
    try:
        if root is not None and not is_inside(path, root):
            return {}
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _cut_torn_line(path: Path) -> None:
    """Shortens a file to the end of its last whole line."""
    if not path.exists():
        return
    with open(path, "rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _BLOCK_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        file.truncate(end)
