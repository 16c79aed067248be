"""Files of JSON lines that survive their writer's death: one object a line, flushed at once."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_BLOCK_BYTES = 65536


def plain(value: Any) -> Any:
    """Returns `value` as JSON can say it: NumPy and JAX values as numbers and lists, NaN as None.

    Infinities become None too: JSON has no word for them. Mapping keys become strings.
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
    """Appends objects to a file, each as one line in one write, from any thread.

    A line that an earlier writer left unfinished when it died is cut off first, so that only the
    last line of a file can ever be torn.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(self.path)
        self._lock = threading.Lock()
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends one object.

        Raises:
          ValueError: the writer is closed.
        """
        line = json.dumps(plain(record), separators=(",", ":"), allow_nan=False) + "\n"
        with self._lock:
            self._file.write(line.encode())

    def close(self) -> None:
        """Closes the file; closing twice is fine."""
        with self._lock:
            self._file.close()


def read_json_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads all whole lines; an unfinished last line, of a writer that was killed, is left out.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a line in the middle is not a JSON object; the message says which.
    """
    lines = Path(path).read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number} is not a JSON object: {record!r}")
        records.append(record)
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
