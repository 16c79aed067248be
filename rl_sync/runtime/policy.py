"""The policy of a run, from its newest snapshot, an earlier one, or its start."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rl_sync.models import lora
from rl_sync.models.config import ModelConfig
from rl_sync.models.sharding import Layout
from rl_sync.runtime import wiring
from rl_sync.runtime.programs import parameters_of
from rl_sync.settings.reading import read_settings
from rl_sync.settings.records import ConfigError, read_config
from rl_sync.settings.run import RunSettings
from rl_sync.storage.snapshots import SnapshotError, load_part
from rl_sync.tasks.task import Task
from rl_sync.types import Params
from rl_sync.workdir import Workdir


class Policy(NamedTuple):
    """A run's policy, or its reward model, after some trainer step.

    Attributes:
      settings, task: of the run.
      step: the finished trainer steps.
      model, params: the model, adapters merged.
    """

    settings: RunSettings
    task: Task
    step: int
    model: ModelConfig
    params: Params


def read_run(workdir: Path) -> RunSettings:
    """Reads the settings of a run.

    Raises:
      ConfigError: the directory is no run's.
    """
    config = Workdir(workdir).config
    try:
        return read_settings(read_config(config))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{workdir} is not the work directory of a run: it holds no {config.name}."
        ) from error


def load_policy(settings: RunSettings, layout: Layout, step: int | None = None) -> Policy:
    """Loads a run's policy onto devices.

    Args:
      step: of the snapshot; None for the newest, 0 for the policy that the run began with.

    Raises:
      ConfigError: there is no such snapshot, or it is damaged.
    """
    task = wiring.load_task(settings)
    model = wiring.model_config(settings, task)
    parameters = parameters_of(settings, task, layout)
    if step == 0:
        params = parameters.initial()
    else:
        kept = {"params": parameters.kept(parameters.like)}
        workdir = Workdir(settings.workdir)
        try:
            step, part, metadata = load_part(workdir.snapshots, step, kept)
        except SnapshotError as error:
            raise ConfigError(str(error)) from error
        except FileNotFoundError as error:
            every = settings.checkpoint.every_steps
            raise ConfigError(
                f"The run in {settings.workdir} has no snapshot"
                + (" yet" if step is None else f" of step {step}")
                + f": one is taken every config.checkpoint.every_steps={every} trainer steps (0 for"
                " none), and when the run ends or is stopped."
            ) from error
        params = parameters.completed(part["params"], metadata.get("base_digest"))
    merged = lora.merge(model, params) if model.lora else params
    return Policy(settings, task, step, lora.merged_config(model), merged)
