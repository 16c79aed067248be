"""Ids of a run in other systems, which the work directory keeps for resumed runs."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rl_sync.workdir import Workdir


def read_identity(workdir: Workdir, backend: str) -> dict[str, str]:
    """Returns the ids that `write_identity` wrote; empty if the backend never had the run."""
    path = workdir.backends / f"{backend}.json"
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): delete it to begin a new run.") from error
    return {str(name): str(value) for name, value in found.items()}


def write_identity(workdir: Workdir, backend: str, identity: Mapping[str, str]) -> None:
    """Stores the backend's ids of the run."""
    path = workdir.backends / f"{backend}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(identity) + "\n")
    temporary.replace(path)
