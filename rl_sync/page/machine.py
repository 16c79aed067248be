"""Use of the machine by the roles of a run, as their records tell it."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import NamedTuple

from rl_sync.page.tail import Tail, is_inside
from rl_sync.workdir import Workdir

_KEPT_LINES = 24
"""Lines of a process over which its share of a core is taken: two minutes."""


class Usage(NamedTuple):
    """Use of the machine by a process and those that it has started.

    Attributes:
      name: of the process.
      cores: CPU seconds in a second, over the last two minutes; None with a single line.
      memory_bytes: resident memory at the last line.
    """

    name: str
    cores: float | None
    memory_bytes: int


class MachineUse:
    """Follows the records of use of all processes.

    Args:
      workdir: the run's directory.
    """

    def __init__(self, workdir: Path):
        self._workdir = workdir
        self._tails: dict[str, Tail] = {}
        self._lines: dict[str, collections.deque[tuple[float, float, int]]] = {}

    def refresh(self) -> None:
        """Reads what is new."""
        folder = Workdir(self._workdir).usage
        if not is_inside(folder, self._workdir) or not folder.is_dir():
            return
        for path in sorted(folder.glob("*.jsonl")):
            name = path.stem
            lines = self._lines.setdefault(name, collections.deque(maxlen=_KEPT_LINES))
            for line in self._tails.setdefault(name, Tail(path, self._workdir)).read().lines:
                said = [line.record.get(key) for key in ("time", "cpu_secs", "memory_bytes")]
                if not all(isinstance(value, int | float) for value in said):
                    continue
                secs, cpu_secs, memory_bytes = map(float, said)  # type: ignore[arg-type]
                if lines and cpu_secs < lines[-1][1]:
                    lines.clear()  # The process was started again, or one of its own has ended.
                lines.append((secs, cpu_secs, int(memory_bytes)))

    @property
    def last_secs(self) -> float:
        """The time of the newest line, in Unix seconds; 0 without any."""
        return max((lines[-1][0] for lines in self._lines.values() if lines), default=0.0)

    @property
    def now(self) -> list[Usage]:
        """The use of each process at its last line, by name."""
        found = []
        for name, lines in sorted(self._lines.items()):
            if lines:
                (began, before, _), (ended, after, memory) = lines[0], lines[-1]
                cores = (after - before) / (ended - began) if ended > began else None
                found.append(Usage(name, cores, memory))
        return found
