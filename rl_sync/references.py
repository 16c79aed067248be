"""References to the user's Python objects: `module:name` and `path/to/file.py:name`."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rl_sync.spelling import hint

_FILE = ".py"


def is_reference(name: str) -> bool:
    """Says whether a name has the form of a reference."""
    where, colon, what = name.rpartition(":")
    return bool(colon and where and what.replace(".", "").isidentifier())


def resolve(reference: str) -> Callable[..., Any]:
    """Imports the function or class that a reference names.

    Relative paths start at the current directory. A file is imported once in each process, and may
    import its neighbors.

    Raises:
      ValueError: there is no such file, module or name, or the import fails; the message says why.
    """
    where, _, what = reference.rpartition(":")
    module = _module(where, reference)
    found: Any = module
    for name in what.split("."):
        if not hasattr(found, name):
            names = [name for name in vars(found) if not name.startswith("_")]
            raise ValueError(f"{reference!r}: {where} has no {name!r}{hint(name, names)}")
        found = getattr(found, name)
    if not callable(found):
        raise ValueError(f"{reference!r} is a {type(found).__name__}, not a function or a class.")
    return found


def reference_of(thing: Callable[..., Any]) -> str:
    """Returns a reference by which other processes find a function or a class.

    Raises:
      ValueError: other processes cannot find it, because it was not defined at the top level of a
        file.
    """
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    try:
        file = inspect.getsourcefile(thing)
    except TypeError:
        file = None
    if file is None or not Path(file).is_file() or "<" in name:
        raise ValueError(
            f"Other processes cannot import {name!r}: define it with a name at the top level of a"
            " file, and give path/to/file.py:name."
        )
    return f"{file}:{name}"


def _module(where: str, reference: str) -> ModuleType:
    is_file = where.endswith(_FILE)
    if is_file and not Path(where).expanduser().exists():
        raise ValueError(
            f"{reference!r}: there is no file {where} (the current directory is {Path.cwd()})."
        )
    try:
        if is_file:
            return _loaded(Path(where).expanduser().resolve(strict=True))
        return importlib.import_module(where)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"{reference!r}: {where} cannot be imported: {type(error).__name__}: {error}"
            f" ({place.filename}, line {place.lineno})."
        ) from error


@functools.cache
def _loaded(path: Path) -> ModuleType:
    """Imports a file under a unique module name, so that it shadows no other module."""
    name = f"{path.stem}_{hashlib.sha1(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, f"{path} is a Python file"
    assert spec.loader is not None, f"{path} is a Python file"
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
