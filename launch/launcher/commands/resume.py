"""`resume`: goes on with a run, given only its work directory."""

from __future__ import annotations

from pathlib import Path

from ml_collections import ConfigDict

from rl_sync.launcher.command import Arguments
from rl_sync.launcher.commands import run
from rl_sync.launcher.processes.run_directory import counted_step, saved, settings_of
from rl_sync.records.run_outcome import read_outcome
from rl_sync.settings.records import ConfigError, ConfigValues, read_config
from rl_sync.workdir import Workdir


def execute(arguments: Arguments) -> int:
    """Resumes a run with its own config, in which settings may be changed.

    Of a run that has finished it only says so.

    Raises:
      ConfigError: the directory holds nothing to go on from, or the settings cannot go on from it.
    """
    assert arguments.config is not None
    workdir = Path(arguments.flags["workdir"])
    config = arguments.config.copy_and_resolve_references()
    _follow_dtype(config, read_config(Workdir(workdir).config))
    config.workdir = str(workdir)
    if (ended := _finished(Workdir(workdir), config.trainer.steps)) is not None:
        print(ended)
        return 0
    has_snapshot = saved(Workdir(workdir)) != (None, None)
    if not has_snapshot and counted_step(Workdir(workdir), settings_of(config.to_dict())) is None:
        raise ConfigError(
            f"{workdir} holds no snapshot yet, so there is nothing to go on from: start the run"
            " again with its config."
        )
    return run.execute(arguments._replace(config=config))


def _finished(workdir: Workdir, steps: int) -> str | None:
    """Returns what to tell of a run that has made all of these trainer steps; None if it has not.

    Schedulers start jobs again that have ended, so this is no mistake.
    """
    outcome, made = read_outcome(workdir), read_config(workdir.config)["trainer"]["steps"]
    if outcome is None or outcome.failed or outcome.stopped or steps > made:
        return None
    return (
        f"The run in {workdir} has finished: it has made all of its {made} trainer steps. To train"
        f" longer, give it more of them, such as --config.trainer.steps={2 * made}."
    )


def _follow_dtype(config: ConfigDict, before: ConfigValues) -> None:
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
