"""Configs that a Python program gives: the file that a run of its own reads."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from rl_sync.settings.following import Following
from rl_sync.settings.records import ConfigError

Config = str | Path | Mapping[str, Any]

_FILE = '''\
"""A config that a Python program has given."""

import json
import pathlib

from rl_sync.configs import base


def get_config():
    """Returns the defaults with what was given."""
    config = base.get_config()
    config.update(json.loads(pathlib.Path(__file__).with_suffix(".json").read_text()))
    return config
'''


def config_file(config: Config, changes: Mapping[str, Any], folder: Path) -> str:
    """Returns the path of a config file; makes one, with a file of JSON beside it, of a dict.

    Args:
      config: a path, a ConfigDict, or a dict of the settings that differ from the defaults.
      changes: settings by their names, which the run is given too; see `values_of`.
      folder: where a file is made.

    Raises:
      ConfigError: a value is none that a config can have.
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
            f"The config has a value that is no number, text, list or dict: {error}."
        ) from error
    return str(path)


def values_of(config: ConfigDict, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config's values; those that follow from others are as the changes make them.

    Such a value goes by the config itself, so the changes are made there, and then taken back.
    Those that cannot be are passed over: the run, which makes all of them again, refuses them.
    """
    before: list[tuple[ConfigDict, str, Any]] = []
    try:
        for path, value in changes.items():
            *within, name = path.split(".")
            with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
                section = functools.reduce(getattr, within, config)
                if not isinstance(_fields(section)[name], Following):
                    old = section[name]
                    section[name] = value
                    before.append((section, name, old))
        return config.to_dict()
    finally:
        for section, name, old in reversed(before):
            section[name] = old


def _fields(section: ConfigDict) -> dict[str, Any]:
    return dict(section.items(preserve_field_references=True))
