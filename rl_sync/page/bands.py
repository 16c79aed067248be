"""Curves of groups of runs: the median of each step, with the least and the greatest."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from rl_sync.page.run_comparison import SeedGroup
from rl_sync.records.metric_catalog import EVALUATION, RL

CURVES = (
    (RL, "reward_mean"),
    (EVALUATION, "accuracy"),
    (RL, "entropy"),
    (RL, "staleness_max"),
    (RL, "completion_tokens_mean"),
    (RL, "loss"),
)
"""The metrics that are drawn, with their phases."""


class Band(NamedTuple):
    """A metric of a group at one step, over the runs that have it."""

    step: int
    least: float
    median: float
    greatest: float


def band(of: SeedGroup, phase: str, name: str) -> list[Band]:
    """Returns a metric of a group, step by step."""
    values: dict[int, list[float]] = {}
    for one in of.runs:
        for line in one.run.metrics.of_phase(phase):
            value = line.get(name)
            if isinstance(value, int | float):
                values.setdefault(int(line["step"]), []).append(float(value))
    return [
        Band(step, min(found), statistics.median(found), max(found))
        for step, found in sorted(values.items())
    ]
