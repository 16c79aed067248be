"""Writes a run's metrics; apart from their reader, as TensorBoard's writer takes long to load."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from rl_sync.observe.jsonlines import JsonLinesWriter, plain
from rl_sync.observe.metrics import METRICS_FILE, PHASES, TENSORBOARD_DIR

_RESERVED = ("phase", "step", "time")


class MetricsWriter:
    """Writes a run's metrics to `workdir/metrics.jsonl` and `workdir/tensorboard/`.

    A run that goes on appends, so a step that was taken again after a restart has two lines; the
    later one counts. Usable as a context manager that closes both.
    """

    def __init__(self, workdir: str | os.PathLike[str]):
        self._lines = JsonLinesWriter(Path(workdir) / METRICS_FILE)
        self._events = SummaryWriter(str(Path(workdir) / TENSORBOARD_DIR), flush_secs=10)

    def write(self, phase: str, step: int, values: Mapping[str, Any]) -> None:
        """Writes one step's values; numbers that are not finite become null.

        Args:
          phase: one of `PHASES`.
          step: counts within the phase.
          values: scalars by name; strings and lists go to the JSON line only.

        Raises:
          ValueError: an unknown phase, or a value named like one of the line's own fields.
        """
        if phase not in PHASES:
            raise ValueError(f"A metric's phase is one of {', '.join(PHASES)}, not {phase!r}.")
        clash = [name for name in _RESERVED if name in values]
        if clash:
            raise ValueError(f"Metrics must not be named {', '.join(clash)}: the line has its own.")
        now = time.time()
        said = {name: plain(value) for name, value in values.items()}
        self._lines.write({"phase": phase, "step": int(step), "time": now, **said})
        for name, value in said.items():
            if isinstance(value, int | float):
                self._events.add_scalar(f"{phase}/{name}", value, int(step), walltime=now)

    def close(self) -> None:
        """Flushes and closes both files; closing twice is fine."""
        self._lines.close()
        self._events.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
