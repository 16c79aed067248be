"""The result of a run, as the master gathers it and the launcher reports it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from rl_sync.isolation.codec import record


@record
class Skipped(NamedTuple):
    """The updates of a phase that were skipped, and the steps between which they were."""

    updates: int
    first_step: int
    last_step: int


@record
class LogprobGap(NamedTuple):
    """The steps whose logprobs were too far apart.

    Attributes:
      first_step, steps: the first of them, and how many there were.
      greatest: of their gaps, in nats.
      limit: above which a gap is too great.
    """

    first_step: int
    steps: int
    greatest: float
    limit: float


@record
class Best(NamedTuple):
    """The evaluated snapshot with the greatest value of a metric.

    Attributes:
      step: the trainer step of the snapshot.
      metric, value: see `rl_sync.records.accuracy.measure`.
    """

    step: int
    metric: str
    value: float


@record
@dataclasses.dataclass(frozen=True)
class RunResult:
    """The result of a run so far; None and empty stand for what has not happened.

    Attributes:
      resumed: the trainer step that it went on from.
      transfer: why weights do not travel as the settings ask.
      sft, rl: the metrics of the last step, and its number as `step`.
      evaluations: by their moments, such as "after RL".
      best: the best snapshot, if one is kept.
      skipped: by phase.
      digest: of the parameters.
      failed: why it has failed.
    """

    resumed: int | None = None
    transfer: str | None = None
    sft: Mapping[str, float] | None = None
    rl: Mapping[str, float] | None = None
    evaluations: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    best: Best | None = None
    skipped: Mapping[str, Skipped] = dataclasses.field(default_factory=dict)
    logprob_gap: LogprobGap | None = None
    digest: str | None = None
    failed: str | None = None

    def updated(self, newer: RunResult) -> RunResult:
        """The result with what a newer one says."""
        said = {name: value for name, value in vars(newer).items() if value not in (None, {})}
        merged = {name: {**getattr(self, name), **said.get(name, {})} for name in _BY_NAME}
        return dataclasses.replace(self, **{**said, **merged})


_BY_NAME = ("evaluations", "skipped")


@record
class Balance(NamedTuple):
    """The sum of a run's leases: leased = trained + buffered + generating + dropped.

    Attributes:
      dropped: by the reason.
      out_of_attempts: how many of those that were not dropped teach nothing.
      failed: the number of beginnings of their episodes that failed, by the reason.
    """

    leased: int
    trained: int
    buffered: int
    generating: int
    dropped: Mapping[str, int]
    out_of_attempts: int
    failed: Mapping[str, int]


@record
class Summary(NamedTuple):
    """The end of a run."""

    result: RunResult
    balance: Balance
