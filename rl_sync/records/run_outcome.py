"""Records of a run's beginning and end: versions of packages, and the digest of the parameters."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rl_sync.records.json_lines import read_object
from rl_sync.workdir import Workdir

_PACKAGES = ("rl_sync", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


class RunOutcome(NamedTuple):
    """The end of a run.

    Attributes:
      secs: its time in Unix seconds.
      digest: digest of the parameters; None if the run did not get that far.
      failed: reason of the failure; None if the run did not fail.
      stopped: reason why it was stopped before its last step; None if it was not.
    """

    secs: float
    digest: str | None = None
    failed: str | None = None
    stopped: str | None = None


def record_start(workdir: str | os.PathLike[str]) -> None:
    """Writes the versions of packages, and deletes the outcome of an earlier start."""
    at = Workdir(workdir)
    at.outcome.unlink(missing_ok=True)
    _write(at.versions, versions_here())


def record_end(workdir: str | os.PathLike[str], outcome: RunOutcome) -> None:
    """Writes how the run ended."""
    _write(Workdir(workdir).outcome, outcome._asdict())


def versions_here() -> dict[str, str]:
    """Returns the versions of Python and of the packages that affect a run's results."""
    found = {"Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def read_versions(workdir: str | os.PathLike[str]) -> dict[str, str]:
    """Returns the versions that a run recorded; empty if it recorded none."""
    return {str(name): str(one) for name, one in read_object(Workdir(workdir).versions).items()}


def read_outcome(workdir: str | os.PathLike[str]) -> RunOutcome | None:
    """Returns the end of a run; None while it goes on, or if it was killed."""
    found = read_object(Workdir(workdir).outcome)
    if "secs" not in found:
        return None
    return RunOutcome(found["secs"], found.get("digest"), found.get("failed"), found.get("stopped"))


def _write(path: Path, values: Mapping[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(values, indent=2) + "\n")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
