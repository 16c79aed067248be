"""The main figures of a run, from its files, for a report and to compare runs."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from rl_sync.records.metric_catalog import EVALUATION, RL
from rl_sync.records.run_outcome import RunOutcome
from rl_sync.records.run_records import RunRecords, open_runs
from rl_sync.records.summary import RunSummary


@dataclasses.dataclass(frozen=True)
class MeasuredAccuracy:
    """An accuracy with the ends of its confidence interval; None where they were not recorded."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.1%}"
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """The main figures of a run; None stands for what it has not recorded.

    Attributes:
      run: the records of the run.
      until: the last trainer step whose metrics and accuracy count; None for the last of all.
    """

    run: RunRecords
    until: int | None = None

    @functools.cached_property
    def summary(self) -> RunSummary | None:
        """The summary of the run's time; None without an RL phase."""
        return self.run.summary

    @functools.cached_property
    def outcome(self) -> RunOutcome | None:
        """The end of the run; None while it goes on, and if it was killed."""
        return self.run.outcome

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The metrics of the trainer steps that count."""
        return self._counted(RL)

    @property
    def steps(self) -> int:
        """The number of the run's last trainer step."""
        lines = self.run.metrics.of_phase(RL)
        return int(lines[-1]["step"]) if lines else 0

    def _counted(self, phase: str) -> list[dict[str, Any]]:
        lines = self.run.metrics.of_phase(phase)
        return [line for line in lines if self.until is None or line["step"] <= self.until]

    def last(self, name: str) -> float | None:
        """Returns a metric of the last trainer step that counts."""
        return _number(self.lines[-1].get(name)) if self.lines else None

    @property
    def accuracy_before(self) -> MeasuredAccuracy | None:
        """Held-out accuracy before the first trainer step."""
        return next((_measured(line) for line in self._evaluations if not line["step"]), None)

    @property
    def accuracy_after(self) -> MeasuredAccuracy | None:
        """Held-out accuracy as it was measured last, after a trainer step."""
        later = [line for line in self._evaluations if line["step"]]
        return _measured(later[-1]) if later else None

    @property
    def accuracy_step(self) -> int | None:
        """The trainer step of `accuracy_after`."""
        later = [int(line["step"]) for line in self._evaluations if line["step"]]
        return later[-1] if later else None

    @property
    def _evaluations(self) -> list[dict[str, Any]]:
        lines = self._counted(EVALUATION)
        return [line for line in lines if _number(line.get("accuracy")) is not None]

    @property
    def staleness_max(self) -> float | None:
        """The greatest staleness of the steps that count, in trainer steps."""
        found = [_number(line.get("staleness_max")) for line in self.lines]
        return max((one for one in found if one is not None), default=None)

    @property
    def secs(self) -> float | None:
        """The seconds between the first and the last record."""
        start = self.run.start_secs
        return self.run.last_secs - start if start else None


def read_facts(workdir: Path, *, rollouts: bool) -> RunFacts:
    """Reads a run.

    Args:
      rollouts: whether to read the records of rollouts too.
    """
    run = RunRecords(workdir)
    run.read(rollouts=rollouts)
    return RunFacts(run)


def read_all(workdirs: list[Path]) -> list[RunFacts]:
    """Reads runs, without their records of rollouts; names of runs differ."""
    runs = open_runs(workdirs)
    for run in runs:
        run.read(rollouts=False)
    return [RunFacts(run) for run in runs]


def _measured(line: dict[str, Any]) -> MeasuredAccuracy:
    low, high = _number(line.get("accuracy_low")), _number(line.get("accuracy_high"))
    return MeasuredAccuracy(line["accuracy"], low, high)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
