"""Metrics of a run: one line of JSON per step."""

from __future__ import annotations

import os
from pathlib import Path

from rl_sync.records.json_lines import JsonLinesReader, JsonObject, warn_of_broken
from rl_sync.records.metric_catalog import LINE_FIELDS
from rl_sync.records.resumption import RESUMED_AT, SFT, StandingRecords
from rl_sync.workdir import Workdir

PHASES = ("sft", "rl", "evaluation")


class MetricLines:
    """Follows the metrics of a run.

    For steps that were repeated after a crash, only the later line counts.

    Args:
      workdir: the run's directory.
      root: see `JsonLinesReader`.
    """

    def __init__(self, workdir: str | os.PathLike[str], root: Path | None = None):
        self._path = Workdir(workdir).metrics
        self._reader = JsonLinesReader(self._path, root)
        self._standing = StandingRecords(is_void)

    def refresh(self) -> int:
        """Reads new lines, warns of broken ones, and returns the number of bytes."""
        news = self._reader.read()
        warn_of_broken(self._path, news.broken)
        if news.is_anew:
            self._standing = StandingRecords(is_void)
        for line in news.lines:
            if RESUMED_AT in line.record or {"phase", "step"} <= line.record.keys():
                self._standing.add(line.record)
        return news.size

    @property
    def lines(self) -> list[JsonObject]:
        """The lines that count, in the order written."""
        return self._standing.records

    def of_phase(self, phase: str) -> list[JsonObject]:
        """Returns the lines of one phase."""
        return [line for line in self.lines if line["phase"] == phase]


def read_metrics(workdir: str | os.PathLike[str], phase: str | None = None) -> list[JsonObject]:
    """Reads the lines of a run's metrics in the order written, of one phase or of all.

    For steps that were repeated after a crash, only the later line is returned.

    The list is empty if the run has not written any lines yet.
    """
    metrics = MetricLines(workdir)
    while metrics.refresh():
        pass
    return metrics.lines if phase is None else metrics.of_phase(phase)


def measured(line: JsonObject) -> JsonObject:
    """Returns the metrics of a line, without its phase, step and time."""
    return {name: value for name, value in line.items() if name not in LINE_FIELDS}


def as_number(value: object) -> float | None:
    """Returns a value of a line as a number; None if it is none."""
    return float(value) if isinstance(value, int | float) else None


def is_void(line: JsonObject, mark: JsonObject) -> bool:
    """Says whether a later mark of a resumption makes a line of metrics void."""
    if line["phase"] == "sft":
        return SFT in mark and line["step"] > mark[SFT]
    # A run that resumes in SFT repeats everything else, even evaluations before the first step.
    return SFT in mark or line["step"] > mark[RESUMED_AT]
