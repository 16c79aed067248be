"""Where files are: on a file system, or in a bucket of an object store."""

from __future__ import annotations

import os

from etils import epath

Location = str | os.PathLike[str]


def is_remote(location: Location) -> bool:
    """Whether it is in a bucket (`gs://bucket/…`), and not on a file system."""
    return "://" in os.fspath(location)


def absolute(location: Location) -> epath.Path:
    """The same wherever the process goes."""
    return epath.Path(location if is_remote(location) else os.path.abspath(location))
