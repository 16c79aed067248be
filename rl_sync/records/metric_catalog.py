"""All metrics of a run: names, units, meanings, normal values, and alarms.

A part of a name in capitals is a placeholder: `reward/NAME` for `reward/format`. A `Threshold` is
both the text about a metric and the alarm of a run (`rl_sync.records.alarms`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rl_sync.records.metric_tables.accuracy_metrics import (
    ACCURACY,
    PROBE,
    SCORES,
)
from rl_sync.records.metric_tables.flow_metrics import (
    DRAFTS,
    LENGTHS,
    RELIABILITY,
    STALENESS,
    TIMES,
    WEIGHTS,
)
from rl_sync.records.metric_tables.learning_metrics import (
    CRITIC,
    EPISODES,
    OPTIMIZATION,
    POLICY,
    REWARD_MODEL,
    REWARDS,
)
from rl_sync.records.metric_tables.metric import Metric, Threshold

MetricValues = Mapping[str, Any]
"""Values of metrics by their names; of a written line also its other fields."""

SFT, RL, EVALUATION = "sft", "rl", "evaluation"
LINE_FIELDS = ("phase", "step", "time")
"""The fields of a line of `metrics.jsonl` that are not metrics."""


METRICS: dict[str, dict[str, tuple[Metric, ...]]] = {
    RL: {
        "Rewards": REWARDS,
        "The policy": POLICY,
        "Staleness": STALENESS,
        "Lengths": LENGTHS,
        "Optimization": OPTIMIZATION,
        "Times": TIMES,
        "Reliability": RELIABILITY,
        "Weights": WEIGHTS,
        "Drafts": DRAFTS,
        "With a critic": CRITIC,
        "With episodes of several turns": EPISODES,
        "Reward models": REWARD_MODEL,
    },
    EVALUATION: {"Evaluations": ACCURACY, "Reward models": SCORES},
    SFT: {"SFT": (*(one for one in OPTIMIZATION if one.name != "policy_loss"), *PROBE)},
}
"""The metrics of each phase, by subject."""


def thresholds() -> Iterator[tuple[str, Threshold]]:
    """Yields the thresholds of trainer steps, each with the whole name of its metric."""
    for metrics in METRICS[RL].values():
        for metric in metrics:
            if isinstance(one := metric.alarm, Threshold):
                for part in one.parts or ("",):
                    yield _pattern_part(metric.name, part), one


_INTERVAL = re.compile(r"(?<=.)_(low|high)(?=$|/)")


def find(phase: str, name: str) -> Metric | None:
    """Returns the record that describes a metric, or None if there is none."""
    known = [metric for part in METRICS[phase].values() for metric in part]
    for candidate in (name, _INTERVAL.sub("", name)):
        exact = [metric for metric in known if metric.name == candidate]
        if exact:
            return exact[0]
        alike = [metric for metric in known if _pattern(metric.name).fullmatch(candidate)]
        if alike:
            return min(alike, key=lambda metric: -len(metric.name))
    return None


def knows(phase: str, name: str) -> bool:
    """Says whether a field of a line of metrics is in the catalog, or in every line."""
    return name in LINE_FIELDS or find(phase, name) is not None


def _pattern_part(name: str, part: str) -> str:
    """Replaces the placeholder in a name by a text."""
    return re.sub(r"(?<![A-Z])[A-Z]+(?![A-Z])", part, name) if part else name


def _pattern(name: str) -> re.Pattern[str]:
    """Makes a pattern from a name whose placeholders match any text."""
    parts = re.split(r"(?<![A-Z])([A-Z]+)(?![A-Z])", name)
    return re.compile("".join(".+" if part.isupper() else re.escape(part) for part in parts))
