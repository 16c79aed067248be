"""Packages that only some environments need."""

from __future__ import annotations

import importlib
from types import ModuleType


def require(module: str, environment: str, extra: str = "games") -> ModuleType:
    """Imports a package that an environment needs, and that one of our extras installs.

    Raises:
      ValueError: it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{environment} needs the package {error.name}, which is not there. Install it:"
            f' pip install "rl_sync[{extra}]"'
        ) from error
