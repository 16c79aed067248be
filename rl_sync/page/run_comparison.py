"""Compares runs: their settings and results, in groups of runs that differ only in the seed."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rl_sync.page.reach import ComparisonPoint
from rl_sync.records.accuracy import MeasuredAccuracy
from rl_sync.records.json_lines import JsonObject
from rl_sync.records.metric_catalog import EVALUATION, RL
from rl_sync.records.run_records import RunRecords
from rl_sync.setting import flat

SEED = "seed"
_PLACES = ("name", "workdir", "launch", "master", "observe", "replay.port", "replay.address")
"""Settings of a run's place and records, which do not affect its results."""

_LEADING = ("sync.mode", "algorithm.name")


class Value(NamedTuple):
    """A figure by which runs are compared.

    Attributes:
      name: name for display and JSON.
      of: returns the figure of a run; None if the run does not have it.
      words: formats the figure.
    """

    name: str
    of: Callable[[RunRecords], float | None]
    words: Callable[[float], str]


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _short(value: float) -> str:
    return f"{value:.3g}"


def _token_price(one: RunRecords) -> float | None:
    trained, cost = one.tokens.trained, sum(one.device_time.costs.values())
    return 1e6 * cost / trained if trained and cost else None


VALUES: tuple[Value, ...] = (
    Value("accuracy before", lambda one: _accuracy(one.accuracy_before), _percent),
    Value("accuracy after", lambda one: _accuracy(one.accuracy_after), _percent),
    Value("reward", lambda one: one.last("reward_mean"), _short),
    Value("entropy", lambda one: one.last("entropy"), _short),
    Value("staleness max", lambda one: one.staleness_max, _short),
    Value("staleness bound", lambda one: one.staleness_bound, _short),
    Value(
        "tokens/s generated",
        lambda one: one.summary.rollout_tokens_per_sec if one.summary else None,
        _count,
    ),
    Value("tokens for a trained one", lambda one: one.tokens.per_trained, _short),
    Value("cost of a million trained tokens", _token_price, _short),
    Value("seconds", lambda one: one.secs, _count),
    Value("trainer steps", lambda one: one.steps, _count),
    Value("alarms", lambda one: len(one.periods), _count),
)
"""The compared figures, one line each."""


CURVES = (
    (RL, "reward_mean"),
    (EVALUATION, "accuracy"),
    (RL, "entropy"),
    (RL, "staleness_max"),
    (RL, "completion_tokens_mean"),
    (RL, "loss"),
)
"""The metrics whose curves are compared, with their phases."""


class Spread(NamedTuple):
    """The least, median and greatest value of a figure over the runs of a group that have it."""

    least: float
    median: float
    greatest: float

    @classmethod
    def of(cls, found: Sequence[float]) -> Spread:
        """Returns the spread of at least one number."""
        return cls(min(found), statistics.median(found), max(found))


@dataclasses.dataclass(frozen=True)
class SeedGroup:
    """Runs whose settings differ only in the seed.

    Attributes:
      name: name that distinguishes it from other groups.
      runs: its runs, in the given order.
      settings: settings by name that differ between groups; "not set" if a run does not have one.
    """

    name: str
    runs: tuple[RunRecords, ...]
    settings: Mapping[str, str]

    def spread(self, value: Value) -> Spread | None:
        """Returns the spread of a figure; None if no run has it."""
        found = [one for one in map(value.of, self.runs) if one is not None]
        return Spread.of(found) if found else None

    def curve(self, phase: str, name: str) -> dict[int, Spread]:
        """Returns the spread of a metric at each step that has it."""
        values: dict[int, list[float]] = {}
        for run in self.runs:
            for line in run.metrics.of_phase(phase):
                if isinstance(value := line.get(name), int | float):
                    values.setdefault(int(line["step"]), []).append(float(value))
        return {step: Spread.of(found) for step, found in sorted(values.items())}

    @property
    def seeds(self) -> list[Any]:
        """The seeds of its runs."""
        return [one.config.get(SEED) for one in self.runs]


def group(runs: Sequence[RunRecords]) -> list[SeedGroup]:
    """Groups runs that differ only in the seed; a run without a config gets a group of its own."""
    settings = [dict(flat(one.config)) for one in runs]
    # A setting that some runs lack belongs to another version of the code, and is ignored.
    known = [one.keys() for one in settings if one]
    shared = set.intersection(*map(set, known)) if known else set()
    differ = [
        name
        for name in sorted(shared - {SEED}, key=lambda name: (name not in _LEADING, name))
        if not _is_place(name) and len({_said(one[name]) for one in settings if one}) > 1
    ]
    members: dict[tuple[str, ...], list[RunRecords]] = {}
    for number, (run, own) in enumerate(zip(runs, settings, strict=True)):
        key = tuple(_said(own[name]) for name in differ) if own else (f"run {number}",)
        members.setdefault(key, []).append(run)
    found = []
    for key, of in members.items():
        has_config = bool(of[0].config)
        values = dict(zip(differ, key, strict=True)) if has_config else {}
        found.append(SeedGroup(_named(values, of), tuple(of), values))
    return found


def are_equal(runs: Sequence[RunRecords]) -> bool | None:
    """Says whether all runs ended with bitwise equal parameters; None if unknown."""
    digests = [one.outcome.digest if one.outcome else None for one in runs]
    if len(digests) < 2 or None in digests:
        return None
    return len(set(digests)) == 1


def record(groups: Sequence[SeedGroup], point: ComparisonPoint) -> JsonObject:
    """Returns the whole comparison for JSON."""
    every = [one for of in groups for one in of.runs]
    return {
        "compared_at": {"by": point.by, "amount": point.amount},
        "digests_equal": are_equal(every),
        "groups": [
            {
                "name": of.name,
                "settings": dict(of.settings),
                "seeds": of.seeds,
                "runs": [_run_record(one) for one in of.runs],
                "spread": {
                    value.name: spread._asdict()
                    for value in VALUES
                    if (spread := of.spread(value)) is not None
                },
            }
            for of in groups
        ],
    }


def _run_record(one: RunRecords) -> JsonObject:
    intervals = {
        name: [measured.low, measured.high]
        for name, measured in (
            ("accuracy before", one.accuracy_before),
            ("accuracy after", one.accuracy_after),
        )
        if measured is not None
    }
    return {
        "name": one.name,
        "seed": one.config.get(SEED),
        "until_step": one.steps if one.until is None else one.until,
        "values": {value.name: value.of(one) for value in VALUES},
        "intervals": intervals,
        "alarms": [period.alarm.name for period in one.periods],
        "digest": one.outcome.digest if one.outcome else None,
        "failed": one.outcome.failed if one.outcome else None,
        "stopped": one.outcome.stopped if one.outcome else None,
    }


def _accuracy(measured: MeasuredAccuracy | None) -> float | None:
    return None if measured is None else measured.value


def _named(values: Mapping[str, str], runs: Sequence[RunRecords]) -> str:
    """Names a group by its only run, or by its mode, its differing settings or its first run."""
    if len(runs) == 1:
        return runs[0].name
    if "sync.mode" in values:
        return values["sync.mode"]
    said = ", ".join(f"{name}={value}" for name, value in list(values.items())[:2])
    return said or f"{runs[0].name} and {len(runs) - 1} more"


def _is_place(name: str) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in _PLACES)


def _said(value: object) -> str:
    return "not set" if value is None else value if isinstance(value, str) else json.dumps(value)
