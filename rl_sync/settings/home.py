"""Paths in a config that start at somebody's home directory, as in `~/runs`.

A shell expands them only where they stand alone, not after an equals sign.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

_PATHS = ("workdir", "directory", "path", "held_out_path", "secret_path", "compilation_cache")
"""The names of settings that are paths, whatever the section."""


def expand(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with those paths written out."""
    if not isinstance(config, Mapping):
        return config  # Refused where the sections are built.
    return {name: _expanded(name, value) for name, value in config.items()}


def _expanded(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return expand(value)
    return os.path.expanduser(value) if name in _PATHS and isinstance(value, str) else value
