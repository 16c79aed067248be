"""Runs that benchmarks make: their settings, explorers that join them, and what is predicted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from rl_sync.launcher import config_file
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings
from rl_sync.simulation.speed.measured_work import read_work
from rl_sync.simulation.speed.prediction import predict
from rl_sync.simulation.speed.speed_plan import plan_of

ROOT = Path(__file__).resolve().parents[1]
_SECRET = "5" * 64
_SIMULATED_SEEDS = range(4)


class Place(Protocol):
    """A host of `networks`, or a machine of `long_lines`."""

    @property
    def address(self) -> str: ...

    def command(self, *argv: str) -> list[str]: ...


def settings_of(workdir: Path) -> RunSettings:
    """Returns the settings of a run."""
    return read_settings(config_file.of_run(workdir).to_dict())


def joined_flags(place: Place, port: int, names: Sequence[str]) -> dict[str, str | int]:
    """Returns settings of a run at a place, which processes with some names join."""
    return {
        "launch.host": place.address,
        "launch.port": port,
        "launch.hosts": ",".join(f"{name}=join" for name in names),
    }


def join_words(name: str, place: Place, port: int) -> list[str]:
    """Returns the launcher's words with which a process joins the run at a place."""
    return ["join", f"--process={name}", f"--run={place.address}:{port}"]


def launched(
    place: Place, words: Sequence[str], output: int | IO[str], before: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Starts the launcher at a place.

    Args:
      words: its command line.
      output: where it prints.
      before: a command that starts it, with its words as last arguments.
    """
    variables = {**os.environ, "RL_SYNC_SECRET": _SECRET, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        place.command(*before, sys.executable, "-m", "rl_sync.launcher", *words),
        cwd=ROOT,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
    )


def predictions(
    workdir: Path,
    schedules: Mapping[str, Mapping[str, Any]],
    steps: int,
    unset: Mapping[str, Any],
) -> dict[str, dict[str, float]]:
    """Predicts schedules from the records of a run.

    Args:
      schedules: the settings of each.
      steps: trainer steps to predict.
      unset: settings of the run that schedules do not keep, with their defaults.
    """
    found = read_work(str(workdir), settings_of(workdir), os.cpu_count())
    unset = {**dict.fromkeys(_OF_SCHEDULES), **unset}
    made = {}
    for name, changes in schedules.items():
        config = config_file.of_run(workdir).to_dict()
        for key, value in {**unset, **changes}.items():
            section, _, setting = key.partition(".")
            config[section][setting] = value
        plan = plan_of(read_settings(config), steps=steps, in_parts=found.in_parts)
        made[name] = predict(plan, found.work, _SIMULATED_SEEDS)._asdict()
    return made


_OF_SCHEDULES = (
    "sync.interval",
    "sync.offset",
    "sync.max_staleness",
    "sync.pull",
    "explorer.groups_per_lease",
)
