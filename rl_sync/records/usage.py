"""Use of the machine by a run's processes: CPU time and memory, a line every few seconds."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil

from rl_sync.records.json_lines import JsonLinesWriter

EVERY_SECS = 5.0


class UsageRecorder:
    """Records the CPU time and the memory of this process and of those that it has started.

    Args:
      path: the file, of this process alone.
      every_secs: the least time between two lines.
    """

    def __init__(self, path: Path, every_secs: float = EVERY_SECS) -> None:
        self._lines = JsonLinesWriter(path, vital=False)
        self._every_secs, self._due_secs = every_secs, 0.0
        self._process = psutil.Process()

    def look(self) -> None:
        """Writes a line, unless the last one is too new."""
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
        self._lines.write(
            {"time": time.time(), "cpu_secs": round(cpu_secs, 2), "memory_bytes": memory_bytes}
        )

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()
