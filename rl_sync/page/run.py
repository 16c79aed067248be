"""A run as the page sees it: all that its files tell, read on as they grow."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from rl_sync.observe.rollouts import parts
from rl_sync.page.activity import Activity
from rl_sync.page.flow import Flow
from rl_sync.page.progress import Progress
from rl_sync.page.samples import Samples
from rl_sync.workdir import Workdir


class Run:
    """A work directory that is only read.

    Args:
      workdir: the directory.
      name: what the page calls it.

    Attributes:
      progress, activity, flow, samples: what was read so far.
    """

    def __init__(self, workdir: Path, name: str):
        self.name, self._workdir = name, workdir
        self._lock = threading.Lock()
        self.progress = Progress(workdir)
        self.activity = Activity(workdir)
        self.flow = Flow(workdir)
        self.samples = Samples(workdir)

    def refresh(self, *, samples: bool = True) -> None:
        """Reads what is new; several threads may call it.

        Args:
          samples: whether to read records of rollouts, which are much larger than all others.
        """
        with self._lock:
            for part in (self.progress, self.activity, self.flow):
                part.refresh()
            if samples:
                self.samples.refresh()

    @property
    def last_secs(self) -> float:
        """The time of the newest record, in Unix seconds; 0 without any."""
        lines = self.progress.lines
        told = float(lines[-1].get("time") or 0.0) if lines else 0.0
        return max(told, self.activity.period[1], self.flow.now.secs)

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Returns sizes and times of the files, which change when there is something new."""
        return tuple(_sizes(self._workdir))


def _sizes(workdir: Path) -> Iterator[tuple[int, int]]:
    at = Workdir(workdir)
    last_part = [part.path for part in parts(workdir)][-1:]
    paths = [at.metrics, at.ledger, at.consumed, at.restarts, at.config, *last_part]
    for path in [*paths, *sorted(at.spans.glob("*.jsonl"))]:
        try:
            found = path.stat()
            yield found.st_size, found.st_mtime_ns
        except OSError:
            yield 0, 0


def open_runs(workdirs: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """Makes the runs of some work directories, with names that differ."""
    paths = [Path(os.path.abspath(workdir)) for workdir in workdirs]
    names = [path.name for path in paths]
    return [
        Run(path, name if names.count(name) == 1 else f"{path.parent.name}/{name}")
        for path, name in zip(paths, names, strict=True)
    ]
