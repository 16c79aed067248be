"""Every setting at its default. Experiment files import this and change a few lines:

    from rl_sync.configs import base

    def get_config():
        config = base.get_config()
        config.trainer.steps = 50
        return config

`python -m launcher settings` lists all settings with their defaults, bounds and meanings, and
`python -m launcher settings PATTERN` those that a word fits; docs/settings.md is the same as a
page. Each setting is described once, where its section is: start from `RunSettings` in
`rl_sync/settings/run.py`.

None (a placeholder) stands for what the mode, or another setting, implies: the algorithm is one
that bears data as stale as the mode lets them get, and all its numbers are those of its name.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference, placeholder

from rl_sync.setting import sections
from rl_sync.settings.run import RunSettings


class _Lookup(NamedTuple):
    """Operation of a `FieldReference`: what it makes of its value when that is read."""

    fn: Callable[[Any], Any]
    args: tuple[()] = ()


class Following(FieldReference):
    """A default that follows from other settings; see `following`."""


def following(config: ConfigDict, value: Callable[[ConfigDict], Any]) -> Following:
    """Makes a default that follows from other settings of a config.

    It is computed when the config is read, so it follows changes of those settings, also those of
    the command line. A value that is given in its place stays.

    Args:
      config: the config. A copy of it goes on to follow the settings of the original.
      value: computes the default.
    """
    return Following(value(config), op=_Lookup(lambda _: value(config)))


def from_scratch(config: ConfigDict, value: int) -> Following:
    """Makes a default for a policy that starts at random: 0 where `model.path` is given."""
    return following(config, lambda config: 0 if config.model.path else value)


def get_config() -> ConfigDict:
    """Returns the defaults."""
    made: dict[str, ConfigDict] = {}
    for section in sections(RunSettings):
        within, _, name = section.name.rpartition(".")
        made[section.name] = config = ConfigDict()
        for entry in section.entries:
            default = placeholder(entry.kind) if entry.default is None else entry.default
            config[entry.name.rpartition(".")[2]] = default
        if name:
            made[within][name] = config
    return made[""]
