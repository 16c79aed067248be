"""Expands paths in a config that start at a home directory, such as `~/runs`.

A shell expands such a path only as a separate word, not after an equals sign.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from rl_sync.setting import sections
from rl_sync.settings.run_settings import RunSettings


def expand(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the config with its paths expanded."""
    if not isinstance(config, Mapping):
        return config  # It is rejected when the sections are made.
    return {name: _expanded(str(name), value) for name, value in config.items()}


def _expanded(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {field: _expanded(f"{name}.{field}", inner) for field, inner in value.items()}
    return os.path.expanduser(value) if name in _paths() and isinstance(value, str) else value


@functools.cache
def _paths() -> frozenset[str]:
    """Returns the names of all settings that are paths."""
    entries = (entry for section in sections(RunSettings) for entry in section.entries)
    return frozenset(entry.name for entry in entries if entry.setting.is_path)
