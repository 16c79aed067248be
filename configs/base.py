"""Every setting at its default. Experiment files import this and change a few lines:

    from rl_sync.configs import base

    def get_config():
        config = base.get_config()
        config.trainer.steps = 50
        return config

`python -m launcher settings` lists all settings with their defaults, bounds and meanings, and
`python -m launcher settings PATTERN` those that match a pattern; docs/settings.md is the same list.
Each setting is described once, in the record of its section: start from `RunSettings` in
`rl_sync/settings/run_settings.py`.

None (a placeholder) stands for a default that follows from the mode or another setting. For
example, the algorithm is one that suits the mode's staleness, and its numbers follow from its name.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from rl_sync.setting import sections
from rl_sync.settings.following import following as following
from rl_sync.settings.following import from_scratch as from_scratch
from rl_sync.settings.following import group_rows as group_rows
from rl_sync.settings.run_settings import RunSettings


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
