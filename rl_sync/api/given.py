"""Writes configs of Python programs to a file that the run's processes read."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from rl_sync.settings.following import Following
from rl_sync.settings.records import ConfigError, ConfigValues

Config = str | Path | ConfigValues
"""A config file, the name of a config of the package, a ConfigDict, or a dict of settings."""

Changes = Mapping[str, Any]
"""Values of settings by their names on the command line, such as `sync.mode`."""

_FILE = '''\
"""A config from a Python program."""

import json
import pathlib

from rl_sync.configs import base


def get_config():
    """Returns the defaults, updated with the program's values."""
    config = base.get_config()
    config.update(json.loads(pathlib.Path(__file__).with_suffix(".json").read_text()))
    return config
'''


def config_file(config: Config, changes: Changes, folder: Path) -> str:
    """Returns the path of a config file; a config that is not a path is written to new files.

    Args:
      config: a path, a ConfigDict, or a dict of the settings that differ from the defaults.
      changes: settings by their names, which the run gets as well; see `values_of`.
      folder: folder for new files.

    Raises:
      ConfigError: a value has a type that no config can have.
    """
    if isinstance(config, str | Path):
        return str(config)
    values = values_of(config, changes) if isinstance(config, ConfigDict) else config
    path = folder / "given.py"
    path.write_text(_FILE)
    try:
        path.with_suffix(".json").write_text(json.dumps(values))
    except TypeError as error:
        raise ConfigError(
            f"The config has a value that is not a number, text, list or dict: {error}."
        ) from error
    return str(path)


def values_of(config: ConfigDict, changes: Changes) -> dict[str, Any]:
    """Returns a config's values; values that it computes from others take the changes into account.

    The changes are made in the config, which computes such values itself, and are then undone.
    Changes that fail are skipped: the run applies all changes again, and reports the failure.
    """
    before: list[tuple[ConfigDict, str, Any]] = []
    try:
        for path, value in changes.items():
            *within, name = path.split(".")
            with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
                section = functools.reduce(getattr, within, config)
                fields = dict(section.items(preserve_field_references=True))
                if not isinstance(fields[name], Following):
                    old = section[name]
                    section[name] = value
                    before.append((section, name, old))
        return config.to_dict()
    finally:
        for section, name, old in reversed(before):
            section[name] = old
