"""Says which rl_sync a machine has, and with which other software it runs."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
from pathlib import Path

import rl_sync

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "numpy")


@functools.cache
def release() -> tuple[str, str]:
    """Returns the version of rl_sync, and a digest of its source, as a clone may be changed."""
    package = Path(rl_sync.__file__).resolve().parent
    found = hashlib.sha256()
    # In a clone, two of the package's folders are links.
    for folder, names, files in os.walk(package, followlinks=True):
        names[:] = sorted(name for name in names if name != "__pycache__")
        for file in sorted(Path(folder, name) for name in files if name.endswith(".py")):
            found.update(file.relative_to(package).as_posix().encode() + b"\0")
            found.update(file.read_bytes())
    return rl_sync.__version__, found.hexdigest()[:12]


def software() -> tuple[tuple[str, str], ...]:
    """Returns versions of Python and of packages that compute; packages that lack are left out."""
    found = [("python", platform.python_version())]
    for name in _PACKAGES:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)
