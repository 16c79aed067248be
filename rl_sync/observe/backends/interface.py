"""Interface of the systems that a run's metrics go to, besides `metrics.jsonl`.

To start a backend is to call a function of a `Run`, which returns a `Backend`: three functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rl_sync.workdir import Workdir


class Run(NamedTuple):
    """A run, as a backend names and describes it.

    Attributes:
      workdir: its work directory.
      settings: its settings, by names such as `sync.mode`.
    """

    workdir: Workdir
    settings: Mapping[str, Any]


class Point(NamedTuple):
    """The numbers of one line of `metrics.jsonl`.

    Attributes:
      phase: one of `rl_sync.observe.metrics.PHASES`.
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

    log: Callable[[Point], None]
    resume: Callable[[int, Sequence[Point]], None]
    finish: Callable[[bool], None]


Start = Callable[[Run], Backend]
