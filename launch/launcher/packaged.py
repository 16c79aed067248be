"""Configs that the package has, by name."""

from __future__ import annotations

import ast
from pathlib import Path

from rl_sync import configs


def names() -> list[str]:
    """Returns the names in the order of the alphabet."""
    return sorted(file.stem for file in _folder().glob("*.py") if file.stem != "__init__")


def path_of(name: str) -> Path | None:
    """Returns the file of a config; None if the package has none of that name."""
    return _folder() / f"{name}.py" if name in names() else None


def description(name: str) -> str:
    """Returns the docstring of a config, which is not executed."""
    path = path_of(name)
    return "" if path is None else ast.get_docstring(ast.parse(path.read_text())) or ""


def _folder() -> Path:
    assert configs.__file__ is not None
    return Path(configs.__file__).resolve().parent  # In the clone a link leads there.
