"""Rewrites a config for a machine that has the run's files at other paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

CODE, OUTSIDE = "code", "outside"
"""Folders of the files: the current directory there, and files from elsewhere."""


def rewrite(config: Mapping[str, Any], changes: Iterable[tuple[str, str]], root: Path) -> Any:
    """Returns a config whose texts name the files below another machine's directory.

    Args:
      config: the config.
      changes: see `RunFiles.rewritten`.
      root: the directory there.
    """
    ordered = sorted(changes, key=lambda change: -len(change[0]))

    def renewed(value: object) -> Any:
        if isinstance(value, Mapping):
            return {name: renewed(one) for name, one in value.items()}
        if not isinstance(value, str):
            return value
        for text, place in ordered:
            if value == text:
                return str(root / place)
            if text.endswith(".py"):
                named = rf"(?<![^\s'\"(),=+*]){re.escape(text)}(?=:)"
                value = re.sub(named, str(root / place).replace("\\", r"\\"), value)
        return value

    return renewed(config)
