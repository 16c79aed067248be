"""Imports packages that only some tasks need."""

from __future__ import annotations

import importlib
from types import ModuleType

WAY_OUT = 'Install it: pip install "rl_sync[tasks]"'


def missing(module: str, task: str) -> str:
    """Returns the message that a task's package is not installed."""
    package = module.partition(".")[0].replace("_", "-").replace("sklearn", "scikit-learn")
    return f"task.name={task} needs the package {package}, which is not installed. {WAY_OUT}"


def require(module: str, task: str) -> ModuleType:
    """Imports a package that a task needs.

    Raises:
      ValueError: it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(missing(module, task)) from error
