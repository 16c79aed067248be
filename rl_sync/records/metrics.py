"""Metrics of a run: one line of JSON a step, and the same numbers for TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rl_sync.records.json_lines import read_json_lines
from rl_sync.records.metric_catalog import LINE_FIELDS
from rl_sync.records.resumption import RESUMED_AT, SFT, standing
from rl_sync.workdir import Workdir

PHASES = ("sft", "rl", "evaluation")


def read_metrics(workdir: str | os.PathLike[str], phase: str | None = None) -> list[dict[str, Any]]:
    """Reads the lines of a run's metrics in the order written, of one phase or of all.

    For steps that were repeated after a crash, only the later line is returned.

    Raises:
      FileNotFoundError: the work directory has no metrics.
      ValueError: a line is not a JSON object; the message gives its number.
    """
    found = read_json_lines(Workdir(workdir).metrics, strict=False)
    lines = standing(found, is_void)
    return [line for line in lines if phase is None or line.get("phase") == phase]


def measured(line: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics of a line, without the fields that say what it is of."""
    return {name: value for name, value in line.items() if name not in LINE_FIELDS}


def is_void(line: dict[str, Any], mark: dict[str, Any]) -> bool:
    """Says whether a later mark of a resumption makes a line of metrics void."""
    if line["phase"] == "sft":
        return SFT in mark and line["step"] > mark[SFT]
    # Before the first trainer step there is an evaluation, after SFT.
    return SFT in mark or line["step"] > mark[RESUMED_AT]
