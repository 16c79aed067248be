"""The policy of a run's snapshot, for what comes after the run."""

from __future__ import annotations

from pathlib import Path

from rl_sync.models import lora
from rl_sync.models.sharding import Layout
from rl_sync.runtime import wiring
from rl_sync.runtime.programs import parameters_of
from rl_sync.settings.reading import read_settings
from rl_sync.settings.records import ConfigError, read_config
from rl_sync.settings.run import RunSettings
from rl_sync.storage.best import read_best
from rl_sync.storage.snapshots import SnapshotError, load_part, snapshot_path
from rl_sync.tasks.task import Task
from rl_sync.types import Params
from rl_sync.workdir import Workdir

BEST = "best"


def settings_of_run(workdir: Path) -> RunSettings:
    """Reads the settings of the run in a work directory.

    Raises:
      ConfigError: there is no run.
    """
    config = Workdir(workdir).config
    try:
        return read_settings(read_config(config))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{workdir} is not the work directory of a run: it holds no {config.name}."
        ) from error


def step_named(workdir: Path, name: str | None) -> int | None:
    """Returns the trainer step of the snapshot that a user names; None for the newest.

    Args:
      name: a step, or `best`; see `checkpoint.best`.

    Raises:
      ConfigError: there is no such snapshot.
    """
    if name is None:
        return None
    if name == BEST:
        best = read_best(Workdir(workdir))
        if best is None:
            raise ConfigError(
                f"The run in {workdir} has no best snapshot: it is kept where checkpoint.best names"
                " a metric of evaluations. Give --step=NUMBER, or leave it out for the newest."
            )
        return best.step
    if not name.isdecimal():
        raise ConfigError(f"--step={name} must be a trainer step, or {BEST}.")
    snapshots = Workdir(workdir).snapshots
    if not snapshot_path(snapshots, int(name)).exists():
        there = sorted(int(path.name.rpartition("_")[2]) for path in snapshots.glob("snapshot_*"))
        raise ConfigError(
            f"The run in {workdir} has no snapshot of step {name} (there are {there}): give one of"
            f" these, {BEST}, or leave --step out for the newest."
        )
    return int(name)


def load_policy(
    workdir: Path, settings: RunSettings, task: Task, layout: Layout, step: int | None
) -> tuple[int, Params]:
    """Loads the policy of a snapshot, with adapters merged.

    Args:
      layout: where the parameters go.
      step: see `step_named`.

    Returns:
      The trainer step of the snapshot, and the parameters.

    Raises:
      ConfigError: there is no snapshot, it is damaged, or it does not fit the settings.
    """
    model = wiring.model_config(settings, task)
    parameters = parameters_of(settings, task, layout)
    kept = {"params": parameters.kept(parameters.like)}
    try:
        step, part, metadata = load_part(Workdir(workdir).snapshots, step, kept)
    except SnapshotError as error:
        raise ConfigError(str(error)) from error
    except FileNotFoundError as error:
        raise ConfigError(
            f"The run in {workdir} has no snapshot yet: one is taken every"
            f" config.checkpoint.every_steps={settings.checkpoint.every_steps} trainer steps (0 for"
            " none), and when the run ends or is stopped."
        ) from error
    params = parameters.completed(part["params"], metadata.get("base_digest"))
    return step, lora.merge(model, params) if model.lora else params
