"""Locations of files: on a file system, or in a bucket of an object store."""

from __future__ import annotations

import os

from etils import epath

Location = str | os.PathLike[str]

STORES = {"gs": "gcsfs", "s3": "s3fs"}
"""Object stores, by the scheme of their addresses, and the packages of fsspec that reach them."""


def is_remote(location: Location) -> bool:
    """Says whether a location is in a bucket (`gs://bucket/…`) instead of a file system."""
    return "://" in os.fspath(location)


def store(location: Location) -> str:
    """Returns the scheme of a location in a bucket, such as `s3`; empty on a file system."""
    scheme, found, _ = os.fspath(location).partition("://")
    return scheme if found else ""


def absolute(location: Location) -> epath.Path:
    """Makes a location absolute, so that a change of the working directory does not move it."""
    return epath.Path(location if is_remote(location) else os.path.abspath(location))
