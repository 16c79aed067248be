"""Packages that only some environments need."""

from __future__ import annotations

import importlib
from types import ModuleType


def require(module: str, environment: str) -> ModuleType:
    """Imports a package that an environment needs.

    Raises:
      ValueError: it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{environment} needs the package {error.name}, which is not there. Install it:"
            ' pip install "rl_sync[games]"'
        ) from error
