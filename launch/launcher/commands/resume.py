"""`resume`: goes on with a run, given only its work directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from rl_sync.launcher.command import Arguments
from rl_sync.launcher.commands import run
from rl_sync.launcher.processes.run_directory import counted_step, saved, settings_of
from rl_sync.settings.records import ConfigError, read_config
from rl_sync.workdir import Workdir


def execute(arguments: Arguments) -> int:
    """Resumes a run with its own config, in which settings may be changed.

    Raises:
      ConfigError: the directory holds nothing to go on from, or the settings cannot go on from it.
    """
    assert arguments.config is not None
    workdir = Path(arguments.flags["workdir"])
    config = arguments.config.copy_and_resolve_references()
    _follow_dtype(config, read_config(Workdir(workdir).config))
    config.workdir = str(workdir)
    has_snapshot = saved(Workdir(workdir)) != (None, None)
    if not has_snapshot and counted_step(Workdir(workdir), settings_of(config.to_dict())) is None:
        raise ConfigError(
            f"{workdir} holds no snapshot yet, so there is nothing to go on from: start the run"
            " again with its config."
        )
    return run.execute(arguments._replace(config=config))


def _follow_dtype(config: ConfigDict, before: Mapping[str, Any]) -> None:
    """Lets the dtypes of the roles follow a changed `model.dtype`, if they were the same before.

    A run's own config has them as values, even if they were left out when the run began.
    """
    of_model = before["model"]["dtype"]
    if config.model.dtype == of_model:
        return
    for section, name in (("trainer", "compute_dtype"), ("explorer", "dtype")):
        if config[section][name] == before[section][name] == of_model:
            with config.ignore_type():
                config[section][name] = None
