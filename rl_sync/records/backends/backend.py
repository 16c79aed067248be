"""Interface of the systems that a run's metrics go to, besides `metrics.jsonl`.

To start a backend is to call a function of a `TrackedRun`, which returns a `Backend`: three
functions. Each may take its time and may raise; `rl_sync.records.backends.delivery_thread` keeps
both from the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl_sync.workdir import Workdir


class Labels(NamedTuple):
    """Names that the user gives a run in other systems; None for the defaults.

    Attributes:
      project: of the run, which MLflow calls an experiment.
      run_name: of the run.
      mlflow_uri: where MLflow keeps runs; None for what its own variables say.
    """

    project: str | None = None
    run_name: str | None = None
    mlflow_uri: str | None = None


class TrackedRun(NamedTuple):
    """A run, as a backend names and describes it.

    Attributes:
      workdir: its work directory.
      settings: its settings, by names such as `sync.mode`.
      labels: the names that the user gives it.
      records: the number of lines that `metrics.jsonl` had before.
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
      resume: is called first in a run that resumes, with the trainer step that it resumes from and
        the points of earlier lines that still count.
      finish: takes whether the run went well; nothing is called after it.
    """

    log: Callable[[MetricPoint], None]
    resume: Callable[[int, Sequence[MetricPoint]], None]
    finish: Callable[[bool], None]


Start = Callable[[TrackedRun], Backend]
