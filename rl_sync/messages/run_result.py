"""The result of a run, which the master collects and the launcher reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from rl_sync.isolation.codec import record


@record
class Skipped(NamedTuple):
    """Number of skipped updates in a phase, and the first and last of their steps."""

    updates: int
    first_step: int
    last_step: int


@record
class LogprobGap(NamedTuple):
    """Steps with too large a gap between the logprobs of trainer and explorers.

    Attributes:
      first_step, steps: the first such step, and the number of such steps.
      greatest: largest of their gaps, in nats.
      limit: gap above which a step counts.
    """

    first_step: int
    steps: int
    greatest: float
    limit: float


@record
class Best(NamedTuple):
    """The evaluated snapshot with the highest value of a metric.

    Attributes:
      step: trainer step of the snapshot.
      metric, value: see `rl_sync.records.accuracy.measure`.
    """

    step: int
    metric: str
    value: float


@record
@dataclasses.dataclass(frozen=True)
class RunResult:
    """The result of a run so far; None and empty fields stand for events that have not happened.

    Attributes:
      resumed: trainer step that the run resumed from.
      transfer: reason why the run does not use the transfer that the settings ask for.
      sft, rl: metrics of the last step, with its number as `step`.
      evaluations: metrics of evaluations by their moments, such as "after RL".
      left_out: reasons why evaluations were not made, by their moments.
      best: best snapshot, if one is kept.
      skipped: skipped updates by phase.
      digest: digest of the final parameters.
      failed: reason why the run failed.
    """

    resumed: int | None = None
    transfer: str | None = None
    sft: Mapping[str, float] | None = None
    rl: Mapping[str, float] | None = None
    evaluations: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    best: Best | None = None
    skipped: Mapping[str, Skipped] = dataclasses.field(default_factory=dict)
    logprob_gap: LogprobGap | None = None
    digest: str | None = None
    failed: str | None = None

    def updated(self, newer: RunResult) -> RunResult:
        """Returns this result, updated with the fields that a newer one sets."""
        said = {name: value for name, value in vars(newer).items() if value not in (None, {})}
        merged = {name: {**getattr(self, name), **said.get(name, {})} for name in _BY_NAME}
        return dataclasses.replace(self, **{**said, **merged})


_BY_NAME = ("evaluations", "left_out", "skipped")


@record
class Balance(NamedTuple):
    """The balance of a run's leases: leased = trained + buffered + generating + dropped.

    Attributes:
      dropped: number of dropped leases by reason.
      out_of_attempts: number of leases that give no gradient, but were not dropped because no
        attempt was left.
      failed: number of failed attempts at episodes, by reason.
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
