"""A run's processes: their CPU time, their memory, and what they do, a line every few seconds."""

from __future__ import annotations

import collections
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from rl_sync.clock import now_secs
from rl_sync.records.json_lines import JsonLinesFolder, JsonLinesWriter, JsonObject
from rl_sync.workdir import Workdir

EVERY_SECS = 5.0
_KEPT_LINES = 24
"""Number of lines that the share of a core is averaged over: two minutes."""


class UsageRecorder:
    """Records the activity of this process, and the CPU time and memory of it and its children.

    Args:
      path: file of this process.
      every_secs: minimum time between two lines.
    """

    def __init__(self, path: Path, every_secs: float = EVERY_SECS) -> None:
        self._lines = JsonLinesWriter(path, vital=False)
        self._every_secs, self._due_secs = every_secs, 0.0
        self._process = psutil.Process()

    def look(self, doing: Callable[[], Mapping[str, Any] | None] = lambda: None) -> None:
        """Writes a line, unless the last one is too new.

        Args:
          doing: returns the activity, as the fields of `Doing` but the time; None for none.
        """
        now = time.monotonic()
        if now < self._due_secs:
            return
        self._due_secs = now + self._every_secs
        cpu_secs, memory_bytes = 0.0, 0
        for one in [self._process, *self._process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error), one.oneshot():  # It may have just ended.
                times = one.cpu_times()
                cpu_secs += times.user + times.system
                memory_bytes += one.memory_info().rss
        line = {"time": now_secs(), "cpu_secs": round(cpu_secs, 2), "memory_bytes": memory_bytes}
        self._lines.write(line | ({"doing": dict(said)} if (said := doing()) else {}))

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()


class Usage(NamedTuple):
    """Use of the machine by a process and its children.

    Attributes:
      name: name of the process.
      cores: CPU seconds per second over the last two minutes; None with a single line.
      memory_bytes: resident memory at the last line.
    """

    name: str
    cores: float | None
    memory_bytes: int


class Doing(NamedTuple):
    """Activity of a process when it wrote its last line; no finished span yet.

    Attributes:
      kind: a `SpanKind`.
      says: the activity in words, such as "evaluation 64/500" or "waits for experiences".
      since_secs: its start, in Unix seconds.
      attributes: those of the span.
      at_secs: the time of the line, in Unix seconds.
    """

    kind: str
    says: str
    since_secs: float
    attributes: JsonObject
    at_secs: float


class MachineUse:
    """Follows the records of use of all processes.

    Args:
      workdir: the run's directory.
      root: see `JsonLinesReader`.

    Attributes:
      doing: the activities of the processes at their last lines, by their names.
    """

    def __init__(self, workdir: str | os.PathLike[str], root: Path | None = None):
        self._folder = JsonLinesFolder(Workdir(workdir).usage, root)
        self._lines: dict[str, collections.deque[tuple[float, float, int]]] = {}
        self.doing: dict[str, Doing] = {}

    def refresh(self) -> int:
        """Reads what is new; returns the number of bytes."""
        size = 0
        for path, news in self._folder.read():
            lines = self._lines.setdefault(path.stem, collections.deque(maxlen=_KEPT_LINES))
            for line in news.lines:
                said = [line.record.get(key) for key in ("time", "cpu_secs", "memory_bytes")]
                if not all(isinstance(value, int | float) for value in said):
                    continue
                secs, cpu_secs, memory_bytes = map(float, said)  # type: ignore[arg-type]
                if lines and cpu_secs < lines[-1][1]:
                    lines.clear()  # The process was restarted, or one of its children has ended.
                lines.append((secs, cpu_secs, int(memory_bytes)))
                self.doing.pop(path.stem, None)
                if (doing := _doing(line.record.get("doing"), secs)) is not None:
                    self.doing[path.stem] = doing
            size += news.size
        return size

    @property
    def last_secs(self) -> float:
        """The time of the newest line, in Unix seconds; 0 without any."""
        return max((lines[-1][0] for lines in self._lines.values() if lines), default=0.0)

    @property
    def now(self) -> list[Usage]:
        """The use of each process at its last line, ordered by name."""
        found = []
        for name, lines in sorted(self._lines.items()):
            if lines:
                (began, before, _), (ended, after, memory) = lines[0], lines[-1]
                cores = (after - before) / (ended - began) if ended > began else None
                found.append(Usage(name, cores, memory))
        return found


def _doing(said: Any, at_secs: float) -> Doing | None:
    """Reads an activity; None if it is not one of this version's."""
    try:
        fields = (str(said["kind"]), str(said["says"]), float(said["since_secs"]))
        return Doing(*fields, dict(said["attributes"]), at_secs)
    except (KeyError, TypeError, ValueError):
        return None
