"""The runs of a sweep: all combinations of the values of some settings."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from rl_sync.launcher import command_line
from rl_sync.launcher.command import Flags
from rl_sync.launcher.processes import run_directory as work
from rl_sync.launcher.processes.setting_changes import changes_between
from rl_sync.records.run_outcome import read_outcome
from rl_sync.settings.records import ConfigError, read_config
from rl_sync.workdir import Workdir

FINISHED = "finished"
_BEGUN, _NEW = "begun", "new"
_SEED = "seed"
_MOST_LETTERS = 150


class Combination(NamedTuple):
    """A run of a sweep.

    Attributes:
      name: the values of the varied settings, as text.
      config: the config with these values.
      workdir: the work directory.
    """

    name: str
    config: ConfigDict
    workdir: Path

    @property
    def output(self) -> Path:
        """The file of the run's output."""
        return self.workdir.with_name(f"{self.workdir.name}.log")


def combinations(config: ConfigDict, flags: Flags) -> list[Combination]:
    """Makes the runs of a sweep; seeds vary fastest, the first setting varies slowest.

    Args:
      config: the config that all runs share.
      flags: the flags `set` (a text for each setting), `seeds` and `into`.

    Raises:
      ConfigError: there is nothing to vary, or a combination is not valid.
    """
    if config.workdir is not None:
        raise ConfigError(
            f"--config.workdir={config.workdir} is for one run: give the directory of all runs as"
            " --into=DIRECTORY."
        )
    axes = [_axis(line) for line in flags.get("set", ())]
    if "seeds" in flags:
        axes.append((_SEED, _seeds(flags["seeds"])))
    if not axes:
        raise ConfigError(
            "sweep needs something to vary: --seeds=0:4, or --set=SETTING=VALUE,VALUE."
        )
    names = [name for name, _ in axes]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{', '.join(twice)} is given twice: give all of its values at once.")
    into = Path(flags.get("into") or Path("runs", f"sweep-{config.name}")).absolute()
    found = []
    for values in itertools.product(*(values for _, values in axes)):
        pairs = [f"{name}={value}" for name, value in zip(names, values, strict=True)]
        changed = command_line.changed(config, [f"--config.{pair}" for pair in pairs])
        workdir = into / _file_name(",".join(pairs))
        with changed.unlocked():
            changed.workdir = str(workdir)
        try:
            work.settings_of(changed.to_dict())
        except ConfigError as error:
            raise ConfigError(f"With {' '.join(pairs)}: {error}") from error
        found.append(Combination(" ".join(pairs), changed, workdir))
    return found


def state(one: Combination) -> str:
    """Returns the state of a run: finished with these settings, begun, or new."""
    path = Workdir(one.workdir).config
    if not path.exists():
        return _NEW
    outcome = read_outcome(one.workdir)
    if outcome is None or outcome.failed or outcome.stopped:
        return _BEGUN
    settings = json.loads(json.dumps(work.settings_of(one.config.to_dict()).resolved()))
    changes = changes_between(read_config(path), settings)
    return _BEGUN if any(change.is_told for change in changes) else FINISHED


def _axis(line: str) -> tuple[str, Sequence[str]]:
    """Reads `name=value,value`; a value that contains a comma is in quotation marks."""
    name, equals, given = line.partition("=")
    name = name.removeprefix("--").removeprefix("config.")
    values = next(csv.reader([given], skipinitialspace=True), [])
    if not (name and equals and values and all(values)):
        raise ConfigError(f"--set={line} must be written as --set=SETTING=VALUE,VALUE.")
    if len(set(values)) < len(values):
        raise ConfigError(f"--set={line} has a value twice.")
    return name, values


def _seeds(given: str) -> Sequence[str]:
    """Reads `0:4`, which is 0 to 3, or `0,5,7`."""
    span = re.fullmatch(r"(\d*):(\d+)", given)
    if span is not None:
        found = [str(seed) for seed in range(int(span[1] or 0), int(span[2]))]
    else:
        found = [one.strip() for one in given.split(",")]
    if not found or not all(one.isdecimal() for one in found) or len(set(found)) < len(found):
        raise ConfigError(
            f"--seeds={given} must be the first seed and the one after the last, as in --seeds=0:4,"
            " or different seeds separated by commas."
        )
    return found


def _file_name(text: str) -> str:
    """Makes the name of a directory; a digest is added if characters had to be replaced."""
    safe = re.sub(r"[^\w.=+,@-]", "_", text)[:_MOST_LETTERS]
    if safe == text:
        return safe
    return f"{safe}-{hashlib.sha256(os.fsencode(text)).hexdigest()[:8]}"
