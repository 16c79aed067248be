"""Files of JSON lines that survive a crash of their writer: each line is flushed immediately."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_BLOCK_BYTES = 65536
_log = logging.getLogger(__name__)


class RecordsError(OSError):
    """Records that a run relies on cannot be written; the message names the file and the reason."""


def plain(value: Any) -> Any:
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


class JsonLinesWriter:
    """Appends objects to a file, each as one whole line or not at all, from any thread.

    An unfinished line is cut off. An earlier writer leaves one when it is killed, this one when the
    disk is full. So only the last line of a file can ever be incomplete.

    Args:
      path: the file.
      vital: whether a line that cannot be written is an error. If not, the writer warns once,
        leaves lines out, and goes on as soon as the file can be written again.
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
        self.write_encoded(
            [
                json.dumps(plain(record), separators=(",", ":"), allow_nan=False).encode()
                for record in records
            ]
        )

    def write_encoded(self, lines: Sequence[bytes]) -> int:
        """Appends objects that are encoded already, without line breaks, at once.

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
            while left:  # A disk that becomes full takes a part, and fails at the next write.
                left = left[self._file.write(left) :]
        except OSError:
            self._torn_at = end
            with contextlib.suppress(OSError):  # Otherwise cut before the next line.
                self._file.truncate(end)
                self._torn_at = None
            raise

    def _give_up(self, error: OSError, count: int) -> None:
        """Reports that lines are lost."""
        cause = f"{self.path} cannot be written: {error.strerror or error}"
        if self._vital:
            raise RecordsError(
                f"{cause}. The run relies on these records: make room, and run it again."
            ) from error
        if not self._lost:
            _log.warning("%s. The run goes on, and leaves out what belongs there.", cause)
        self._lost += count

    def _recovered(self) -> None:
        if self._lost:
            _log.warning("%s is written again; it lacks %d lines.", self.path, self._lost)
        self._lost = 0


def read_json_lines(path: str | os.PathLike[str], *, strict: bool = True) -> list[dict[str, Any]]:
    """Reads all whole lines; an unfinished last line of a killed writer is left out.

    Args:
      strict: whether a broken line in the middle is an error. If not, such lines are left out, and
        a warning gives their number.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a line in the middle is not a JSON object; the message gives its number.
    """
    lines = Path(path).read_bytes().split(b"\n")
    records, broken = [], []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError(f"it is {record!r}")
        except ValueError as error:
            if strict:
                raise ValueError(f"{path}, line {number} is not a JSON object: {error}") from error
            broken.append(number)
        else:
            records.append(record)
    if broken:
        _log.warning(
            "%s: %d lines are broken and left out, the first of them line %d.",
            path,
            len(broken),
            broken[0],
        )
    return records


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
