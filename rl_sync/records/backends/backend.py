"""Interface of the systems that a run's metrics go to, besides `metrics.jsonl`.

A backend is started by a function of a `TrackedRun`, which returns a `Backend` of three functions.
Each may be slow and may raise; `rl_sync.records.backends.delivery_thread` shields the run from
both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl_sync.workdir import Workdir


class Labels(NamedTuple):
    """Names that the user gives a run in other systems; None for the defaults.

    Attributes:
      project: project of the run, which MLflow calls an experiment.
      run_name: name of the run.
      mlflow_uri: MLflow's store of runs; None for the one in its own environment variables.
    """

    project: str | None = None
    run_name: str | None = None
    mlflow_uri: str | None = None


class TrackedRun(NamedTuple):
    """A run, as a backend names and describes it.

    Attributes:
      workdir: its work directory.
      settings: its settings by name, such as `sync.mode`.
      labels: the user's names for it.
      records: number of earlier lines of `metrics.jsonl`.
    """

    workdir: Workdir
    settings: Mapping[str, Any]
    labels: Labels = Labels()
    records: int = 0

    @property
    def default_project(self) -> str:
        """The name in the config, such as `arithmetic`."""
        return str(self.settings.get("name") or "rl_sync")

    @property
    def default_name(self) -> str:
        """The name of the work directory."""
        return Path(self.workdir).resolve().name


class MetricPoint(NamedTuple):
    """The numbers of one line of `metrics.jsonl`.

    Attributes:
      phase: one of `rl_sync.records.metrics.PHASES`.
      step: the step within the phase.
      secs: the time of the line, in Unix seconds.
      values: numbers by names such as `rl/reward_mean`.
    """

    phase: str
    step: int
    secs: float
    values: Mapping[str, float]


class Backend(NamedTuple):
    """A started backend.

    Attributes:
      log: takes the numbers of a line.
      resume: called first in a resumed run, with the trainer step that it resumes from and the
        points of earlier lines that still count.
      finish: takes whether the run succeeded; it is the last call.
    """

    log: Callable[[MetricPoint], None]
    resume: Callable[[int, Sequence[MetricPoint]], None]
    finish: Callable[[bool], None]


Start = Callable[[TrackedRun], Backend]
