"""Locations of files: on a file system, or in a bucket of an object store."""

from __future__ import annotations

import os

from etils import epath

Location = str | os.PathLike[str]


def is_remote(location: Location) -> bool:
    """Says whether a location is in a bucket (`gs://bucket/…`) instead of a file system."""
    return "://" in os.fspath(location)


def absolute(location: Location) -> epath.Path:
    """Makes a location absolute, so that a change of the working directory does not move it."""
    return epath.Path(location if is_remote(location) else os.path.abspath(location))
