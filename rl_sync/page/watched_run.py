"""A run as the page sees it: all that its files tell, read on as they grow."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rl_sync.page.activity import Activity
from rl_sync.page.flow import Flow
from rl_sync.page.machine import MachineUse
from rl_sync.page.metric_progress import MetricProgress
from rl_sync.page.samples import Samples
from rl_sync.page.text import duration
from rl_sync.records.rollout_records import parts
from rl_sync.records.run_outcome import read_outcome
from rl_sync.records.run_totals import Pace
from rl_sync.workdir import Workdir

_SILENT_SECS = 120.0
"""The time without a record after which a run that has not ended does not count as live."""


class WatchedRun:
    """A work directory that is only read.

    Args:
      workdir: the directory.
      name: what the page calls it.

    Attributes:
      progress, activity, flow, samples, machine: what was read so far.
    """

    def __init__(self, workdir: Path, name: str):
        self.name, self._workdir = name, workdir
        self._lock = threading.Lock()
        self.progress = MetricProgress(workdir)
        self.activity = Activity(workdir)
        self.flow = Flow(workdir)
        self.samples = Samples(workdir)
        self.machine = MachineUse(workdir)

    def refresh(self, *, samples: bool = True) -> None:
        """Reads what is new; several threads may call it.

        Args:
          samples: whether to read records of rollouts, which are much larger than all others.
        """
        with self._lock:
            for part in (self.progress, self.activity, self.flow, self.machine):
                part.refresh()
            if samples:
                self.samples.refresh()

    @property
    def last_secs(self) -> float:
        """The time of the newest record, in Unix seconds; 0 without any."""
        lines = self.progress.lines
        told = float(lines[-1].get("time") or 0.0) if lines else 0.0
        return max(told, self.activity.period[1], self.flow.now.secs)

    @property
    def start_secs(self) -> float:
        """The time of the first record, in Unix seconds; 0 without any."""
        lines = self.progress.lines
        times = [float(line["time"]) for line in lines[:1] if line.get("time")]
        began = self.activity.period[0]
        return min([*times, *([began] if began else [])], default=0.0)

    @property
    def workdir(self) -> Workdir:
        """The work directory that is read."""
        return Workdir(self._workdir)

    @property
    def state(self) -> str:
        """`live`, the way in which the run has ended, or for how long it has been silent."""
        if (outcome := read_outcome(self._workdir)) is not None:
            if outcome.failed is not None:
                return "failed"
            return "finished" if outcome.stopped is None else "stopped"
        silent_secs = time.time() - max(self.last_secs, self.machine.last_secs)
        if silent_secs < _SILENT_SECS:
            return "live"
        return f"no record for {duration(silent_secs)}"

    @property
    def left_secs(self) -> float | None:
        """The time that the remaining trainer steps take at the pace of the last ones."""
        steps, pace = self.progress.setting("trainer", "steps"), Pace()
        for line in self.progress.of_phase("rl"):
            pace.note(int(line["step"]), float(line.get("time") or 0.0))
        if self.state != "live" or not isinstance(steps, int):
            return None
        return pace.left_secs(steps, time.time())

    def stamp(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        """Returns the state, and sizes and times of the files: they change with what is shown.

        No file tells that a run was killed.
        """
        return self.state, tuple(_sizes(self._workdir))


def _sizes(workdir: Path) -> Iterator[tuple[int, int]]:
    at = Workdir(workdir)
    last_part = [part.path for part in parts(workdir)][-1:]
    paths = [at.outcome, at.metrics, at.ledger, at.consumed, at.restarts, at.config, *last_part]
    for path in [*paths, *sorted(at.spans.glob("*.jsonl")), *sorted(at.usage.glob("*.jsonl"))]:
        try:
            found = path.stat()
            yield found.st_size, found.st_mtime_ns
        except OSError:
            yield 0, 0


def open_runs(workdirs: Sequence[str | os.PathLike[str]]) -> list[WatchedRun]:
    """Makes the runs of some work directories, with names that differ."""
    paths = [Path(os.path.abspath(workdir)) for workdir in workdirs]
    names = [path.name for path in paths]
    return [
        WatchedRun(path, name if names.count(name) == 1 else f"{path.parent.name}/{name}")
        for path, name in zip(paths, names, strict=True)
    ]
