"""Gives packages second names, under which the same modules can be imported.

In the clone, `configs` and `launcher` are the packages `rl_sync.configs` and `rl_sync.launcher`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import cast


def alias(name: str, package: str) -> None:
    """Makes a top-level name stand for a package; its modules are the same under both names.

    Args:
      name: the top-level name. The module of that name calls this function while it is imported.
      package: the package's own name.
    """
    sys.meta_path.insert(0, _Finder(name, package))
    sys.modules[name] = importlib.import_module(package)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of a package by its second name."""

    def __init__(self, name: str, package: str):
        self._name, self._package = name, package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if not fullname.startswith(f"{self._name}."):
            return None
        found = importlib.util.find_spec(self._package + fullname.removeprefix(self._name))
        return None if found is None else importlib.machinery.ModuleSpec(fullname, _Loader(found))


class _Loader(importlib.abc.InspectLoader):
    """Loads a module by its own name."""

    def __init__(self, own: importlib.machinery.ModuleSpec):
        self._own = own

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Returns the module, and imports it first if necessary."""
        return importlib.import_module(self._own.name)

    def exec_module(self, module: ModuleType) -> None:
        """Restores the module's own spec; its code has already run."""
        module.__spec__ = self._own

    def get_code(self, fullname: str) -> CodeType | None:
        """Returns the module's code, for `python -m`."""
        return cast(importlib.abc.InspectLoader, self._own.loader).get_code(self._own.name)

    def get_source(self, fullname: str) -> str | None:
        """Returns the module's source."""
        return cast(importlib.abc.InspectLoader, self._own.loader).get_source(self._own.name)
