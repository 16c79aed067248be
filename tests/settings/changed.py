"""Configs and settings with some fields changed."""

from __future__ import annotations

from typing import Any

from rl_sync.configs import base
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings


def config_with(config: Any, **fields: Any) -> dict[str, Any]:
    """The config with some fields set; `sync__mode` stands for sync.mode."""
    for name, value in fields.items():
        *sections, field = name.split("__")
        section = config
        for part in sections:
            section = section[part]
        section[field] = value
    values = config.to_dict()
    return {**values, "workdir": values["workdir"] or "somewhere"}


def settings_with(**fields: Any) -> RunSettings:
    return read_settings(config_with(base.get_config(), **fields))
