"""The main figures of a run, from its files, for a report and to compare runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rl_sync.page.watched_run import WatchedRun, open_runs
from rl_sync.records.metric_catalog import EVALUATION, RL
from rl_sync.records.run_outcome import RunOutcome, read_outcome
from rl_sync.records.spans import Span, read_spans
from rl_sync.records.summary import RunSummary, summarize


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
      run: the run, read.
      spans: its spans, with the gaps of resumptions closed.
      summary: of the spans.
      outcome: None while it goes on, and if it was killed.
      until: the last trainer step whose metrics and accuracy count; None for the last of all.
    """

    run: WatchedRun
    spans: list[Span]
    summary: RunSummary | None
    outcome: RunOutcome | None
    until: int | None = None

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The metrics of the trainer steps that count."""
        return self._counted(RL)

    @property
    def steps(self) -> int:
        """The number of the run's last trainer step."""
        lines = self.run.progress.of_phase(RL)
        return int(lines[-1]["step"]) if lines else 0

    def _counted(self, phase: str) -> list[dict[str, Any]]:
        lines = self.run.progress.of_phase(phase)
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
    def start(self) -> float:
        """The time of the first record, in Unix seconds; 0 without any."""
        return self.run.start_secs

    @property
    def secs(self) -> float | None:
        """The seconds between the first and the last record."""
        return self.run.last_secs - self.start if self.start else None

    @property
    def is_empty(self) -> bool:
        """True where the run has recorded nothing yet."""
        return not (self.run.progress.lines or self.spans or self.run.flow.leased)


def read_facts(workdir: Path, *, samples: bool) -> RunFacts:
    """Reads a run.

    Args:
      samples: whether to read the records of rollouts too.
    """
    return _facts(workdir, open_runs([workdir])[0], samples)


def read_all(workdirs: list[Path]) -> list[RunFacts]:
    """Reads runs, without their records of rollouts; names of runs differ."""
    runs = open_runs(workdirs)
    return [_facts(workdir, run, False) for workdir, run in zip(workdirs, runs, strict=True)]


def _facts(workdir: Path, run: WatchedRun, samples: bool) -> RunFacts:
    before: tuple[int, ...] = ()
    # A refresh reads so many bytes at most, so that a page answers.
    while (now := _size(run)) != before:
        before = now
        run.refresh(samples=samples)
    try:
        spans = read_spans(workdir)
    except (OSError, ValueError):
        spans = []
    try:
        summary = summarize(spans)
    except ValueError:
        summary = None
    return RunFacts(run, spans, summary, read_outcome(workdir))


def _size(run: WatchedRun) -> tuple[int, ...]:
    spans = sum(map(len, run.activity.spans.values()))
    flow = len(run.flow.moments) + len(run.flow.staleness)
    return len(run.progress.lines), spans, flow, run.samples.count


def _measured(line: dict[str, Any]) -> MeasuredAccuracy:
    low, high = _number(line.get("accuracy_low")), _number(line.get("accuracy_high"))
    return MeasuredAccuracy(line["accuracy"], low, high)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
