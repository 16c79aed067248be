"""The saved policy of a run: from a snapshot, or the initial one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

from rl_sync.checkpoints.best_snapshot import read_best
from rl_sync.checkpoints.snapshot_folder import load_part
from rl_sync.checkpoints.snapshots import SnapshotError, latest_snapshot, snapshot_path
from rl_sync.configs import base
from rl_sync.models import lora
from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.files import read_object
from rl_sync.models.sharding import Layout
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.parameters import Parameters, parameters_of
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError, read_config, require
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.types import Params
from rl_sync.workdir import Workdir

BEST = "best"
_LEAST_POSITIONS = 2048


class RunPolicy(NamedTuple):
    """A run's policy, or its reward model, after some trainer step.

    Attributes:
      settings, task: settings and task of the run.
      step: number of finished trainer steps.
      model, params: model config and parameters, with adapters merged; see `model_of_run`.
    """

    settings: RunSettings
    task: Task
    step: int
    model: ModelConfig
    params: Params


def is_run(path: str) -> bool:
    """Says whether a path is the work directory of a run."""
    try:
        values = read_object(Workdir(Path(path).expanduser()).config)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return "trainer" in values and "model_type" not in values


def settings_of_run(workdir: Path) -> RunSettings:
    """Reads the settings of the run in a work directory.

    Settings that the run's version did not have are those of `rl_sync.configs.base`.

    Raises:
      ConfigError: the directory does not contain a run, or its config does not fit this version.
    """
    path, config = Workdir(workdir).config, base.get_config()
    try:
        config.update(read_config(path))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{workdir} is not the work directory of a run: it holds no {path.name}."
        ) from error
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} does not fit this version of the code: {error}") from error
    return read_settings(config.to_dict())


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
                f"The run in {workdir} has no best snapshot: runs keep one if checkpoint.best"
                " names a metric of evaluations. Give step=NUMBER, or leave step out for the"
                " newest."
            )
        return best.step
    if not name.isdecimal():
        raise ConfigError(f"step={name} must be a trainer step, or {BEST}.")
    snapshots = Workdir(workdir).snapshots
    if not snapshot_path(snapshots, int(name)).exists():
        there = sorted(int(path.name.rpartition("_")[2]) for path in snapshots.glob("snapshot_*"))
        raise ConfigError(
            f"The run in {workdir} has no snapshot of step {name} (there are {there}): give one of"
            f" these, {BEST}, or leave step out for the newest."
        )
    return int(name)


def require_snapshot(workdir: Path) -> None:
    """Rejects a run without snapshots.

    Raises:
      ConfigError: there is no snapshot.
    """
    require(
        latest_snapshot(Workdir(workdir).snapshots) is not None,
        f"the run in {workdir} has no snapshot yet: wait for one, or use step=0 for the policy"
        " that it began with.",
    )


def load_policy(
    workdir: Path, settings: RunSettings, task: Task, layout: Layout, step: int | None
) -> tuple[int, Params]:
    """Loads the policy of a snapshot, with adapters merged.

    Args:
      layout: sharding of the parameters.
      step: see `step_named`.

    Returns:
      The trainer step of the snapshot, and the parameters.

    Raises:
      ConfigError: there is no snapshot, it is damaged, or it does not fit the settings.
    """
    model = wiring.model_config(settings, task)
    parameters = _exactly(parameters_of(settings, task, layout))
    step, kept, base_digest = _load_kept(workdir, settings, parameters, step)
    params = parameters.completed(kept, base_digest)
    return step, lora.merge(model, params) if model.lora else params


def _exactly(parameters: Parameters) -> Parameters:
    """Returns parameters whose base keeps the checkpoint's precision, to leave the run."""
    return dataclasses.replace(parameters, base_dtype="float32")


def load_adapters_of_run(
    workdir: Path, settings: RunSettings, task: Task, layout: Layout, step: int | None
) -> tuple[int, Params]:
    """Loads the adapters of a snapshot, and nothing else.

    Args:
      layout: sharding of the adapters.
      step: see `step_named`; 0 for those that the run began with.

    Returns:
      The trainer step of the snapshot, and the adapters; see `rl_sync.models.lora.split`.

    Raises:
      ConfigError: see `load_policy`.
    """
    parameters = parameters_of(settings, task, layout)
    if step == 0:
        return 0, parameters.kept(parameters.initial())
    step, kept, _ = _load_kept(workdir, settings, parameters, step)
    return step, kept


def _load_kept(
    workdir: Path, settings: RunSettings, parameters: Parameters, step: int | None
) -> tuple[int, Params, str | None]:
    """Loads what a snapshot holds of the parameters, and the digest of what it omits."""
    kept = {"params": parameters.kept(parameters.abstract)}
    try:
        step, part, metadata = load_part(Workdir(workdir).snapshots, step, kept)
    except SnapshotError as error:
        raise ConfigError(str(error)) from error
    except FileNotFoundError as error:
        raise ConfigError(
            f"The run in {workdir} has no snapshot yet: a run saves one every"
            f" config.checkpoint.every_steps={settings.checkpoint.every_steps} trainer steps (0"
            " for none), and when it ends or is stopped."
        ) from error
    return step, part["params"], metadata.get("base_digest")


def policy_of_run(workdir: Path, layout: Layout, step: int | None) -> RunPolicy:
    """Loads the policy of a run as its own settings describe it.

    Args:
      layout: sharding of the parameters.
      step: see `step_named`; 0 for the initial policy, before any SFT.

    Raises:
      ConfigError: see `load_policy`.
    """
    settings = settings_of_run(workdir)
    task = wiring.load_task(settings)
    model = wiring.model_config(settings, task)
    if step == 0:
        params = _exactly(parameters_of(settings, task, layout)).initial()
        params = lora.merge(model, params) if model.lora else params
    else:
        step, params = load_policy(workdir, settings, task, layout, step)
    return RunPolicy(settings, task, step, model_of_run(settings, task), params)


def model_of_run(settings: RunSettings, task: Task) -> ModelConfig:
    """Returns a run's model config for use after the run, with adapters merged.

    Its `max_length` is that of the checkpoint that the run started from. After a random start it is
    2,048, or the length of the run's rows if that is greater: RoPE has no last position, and users
    should not be limited to the lengths of training.
    """
    model = lora.merged_config(wiring.model_config(settings, task))
    longest = settings.model.longest() or _LEAST_POSITIONS
    return dataclasses.replace(model, max_length=max(model.max_length, longest))
