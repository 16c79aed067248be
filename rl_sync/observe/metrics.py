"""Metrics as a run keeps them: one line of JSON a step, and the same numbers for TensorBoard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rl_sync.observe.jsonlines import read_json_lines

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_DIR = "tensorboard"
PHASES = ("warm_up", "rl", "evaluation")


def read_metrics(workdir: str | os.PathLike[str], phase: str | None = None) -> list[dict[str, Any]]:
    """Reads the lines of a run's metrics in the order written, of one phase or of all.

    Raises:
      FileNotFoundError: the work directory has no metrics.
      ValueError: a line is not a JSON object; the message says which.
    """
    lines = read_json_lines(Path(workdir) / METRICS_FILE, strict=False)
    return [line for line in lines if phase is None or line.get("phase") == phase]
