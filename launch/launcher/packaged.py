"""Configs that the package has, by name."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path


def names() -> list[str]:
    """Returns the names in the order of the alphabet; none where `configs` is not installed."""
    folder = _folder()
    files = [] if folder is None else folder.glob("*.py")
    return sorted(file.stem for file in files if file.stem != "__init__")


def path_of(name: str) -> Path | None:
    """Returns the file of a config; None if the package has none of that name."""
    folder = _folder()
    return folder / f"{name}.py" if folder is not None and name in names() else None


def description(name: str) -> str:
    """Returns the docstring of a config, which is not executed."""
    path = path_of(name)
    return "" if path is None else ast.get_docstring(ast.parse(path.read_text())) or ""


def _folder() -> Path | None:
    spec = importlib.util.find_spec("configs")
    places = None if spec is None else spec.submodule_search_locations
    return Path(next(iter(places))) if places else None
