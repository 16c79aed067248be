"""Record of a run's best snapshot, next to its snapshots."""

from __future__ import annotations

import json
from pathlib import Path

from rl_sync.messages.run_result import Best
from rl_sync.workdir import Workdir, snapshot_name


def read_best(workdir: Workdir) -> Best | None:
    """Reads the record of the best snapshot; None if either is missing."""
    try:
        best = Best(**json.loads(workdir.best.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return best if (workdir.snapshots / snapshot_name(best.step)).exists() else None


def write_best(workdir: Workdir, best: Best) -> None:
    """Records the best snapshot."""
    workdir.best.parent.mkdir(parents=True, exist_ok=True)
    temporary: Path = workdir.best.with_suffix(".tmp")
    temporary.write_text(json.dumps(best._asdict()) + "\n")
    temporary.replace(workdir.best)
