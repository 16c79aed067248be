"""Results of a run, read from its work directory, while it goes on or after it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from rl_sync.api.policy import Policy, load
from rl_sync.observe.metrics import read_metrics
from rl_sync.runtime.policy import settings_of_run
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run import RunSettings
from rl_sync.workdir import Workdir


class Curve(NamedTuple):
    """A metric over the steps that have it.

    Attributes:
      steps: trainer steps, or warm-up steps.
      values: one a step; None where it was not finite.
    """

    steps: list[int]
    values: list[float | None]


@dataclasses.dataclass(frozen=True)
class Result:
    """The records of a run. Every access reads the files anew, so a run may still be going on.

    Attributes:
      workdir: the run's directory.
    """

    workdir: Path

    @property
    def settings(self) -> RunSettings:
        """The run's settings."""
        return settings_of_run(self.workdir)

    @property
    def paths(self) -> Workdir:
        """The places of the run's files."""
        return Workdir(str(self.workdir))

    def metrics(self, phase: str = "rl") -> list[dict[str, Any]]:
        """Returns a line for each step of a phase, as docs/metrics.md describes them.

        Args:
          phase: `rl`, `evaluation` or `warm_up`.
        """
        try:
            return read_metrics(str(self.workdir), phase)
        except FileNotFoundError:
            return []

    def curve(self, name: str, phase: str = "rl") -> Curve:
        """Returns a metric over the steps.

        Raises:
          KeyError: no step has it; the message names those that there are.
        """
        lines = self.metrics(phase)
        found = [line for line in lines if name in line]
        if not found:
            there = sorted({key for line in lines for key in line})
            raise KeyError(f"no step of phase {phase!r} has {name!r}; there are {there}")
        return Curve([line["step"] for line in found], [line[name] for line in found])

    @property
    def accuracy(self) -> dict[int, float]:
        """Held-out accuracy by the trainer step after which it was measured; 0 is before RL."""
        return {line["step"]: line["accuracy"] for line in self.metrics("evaluation")}

    def policy(self, step: int | str | None = None) -> Policy:
        """Loads the policy; see `rl_sync.load`."""
        return load(str(self.workdir), step=step)


def open_run(workdir: str | Path) -> Result:
    """Opens the records of a run that goes on or has ended.

    Raises:
      ConfigError: the directory has no run.
    """
    path = Path(workdir).absolute()
    if not Workdir(str(path)).config.is_file():
        raise ConfigError(f"{path} is not the work directory of a run: it holds no config.json.")
    return Result(path)
