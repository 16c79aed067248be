"""Writer of a run's metrics, apart from the reader, as TensorBoard's writer imports slowly."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rl_sync.observe.backends import tensorboard
from rl_sync.observe.backends.interface import Backend, Point, Run
from rl_sync.observe.jsonlines import JsonLinesWriter, plain
from rl_sync.observe.metric_catalog import LINE_FIELDS
from rl_sync.observe.metrics import PHASES, read_metrics
from rl_sync.observe.resumption import mark
from rl_sync.spelling import require_one_of
from rl_sync.workdir import Workdir

_log = logging.getLogger(__name__)


class MetricsWriter:
    """Writes a run's metrics to `workdir/metrics.jsonl` and `workdir/tensorboard/`.

    A run that resumes appends; see `resume`. The settings in `workdir/config.json`, if there are
    any, are TensorBoard's hyperparameters. The writer is a context manager that closes both.
    """

    def __init__(self, workdir: str | os.PathLike[str]):
        self._workdir = Workdir(workdir)
        self._lines = JsonLinesWriter(self._workdir.metrics, vital=False)
        settings: dict[str, Any] = {}
        if self._workdir.config.exists():
            settings = dict(_flattened(json.loads(self._workdir.config.read_text())))
        self._backend: Backend | None = None
        self._try(lambda: self._start(Run(self._workdir, settings)))

    def _start(self, run: Run) -> None:
        self._backend = tensorboard.start(run)

    def resume(self, step: int, warm_up: int | None = None) -> None:
        """Marks where the run resumes: earlier lines of later steps become void.

        Args:
          step, warm_up: see `rl_sync.observe.resumption.mark`.
        """
        self._lines.write(mark(step, warm_up))
        earlier = [_point(line) for line in read_metrics(self._workdir)]
        if (backend := self._backend) is not None:
            self._try(lambda: backend.resume(step, earlier))

    def write(self, phase: str, step: int, values: Mapping[str, Any]) -> None:
        """Writes one step's values; numbers that are not finite become null.

        Args:
          phase: one of `PHASES`.
          step: the step within the phase.
          values: scalars by name. Strings and lists are written to the JSON line only.

        Raises:
          ValueError: the phase is unknown, or a value has the name of one of the line's own fields.
        """
        require_one_of("phase", phase, PHASES)
        clash = [name for name in LINE_FIELDS if name in values]
        if clash:
            raise ValueError(f"Metrics must not be named {', '.join(clash)}: the line has its own.")
        said = {name: plain(value) for name, value in values.items()}
        line = {"phase": phase, "step": int(step), "time": time.time(), **said}
        self._lines.write(line)
        if (backend := self._backend) is not None:
            self._try(lambda: backend.log(_point(line)))

    def close(self) -> None:
        """Flushes and closes both files; closing twice is fine."""
        self._lines.close()
        if (backend := self._backend) is not None:
            self._try(lambda: backend.finish(True))
        self._backend = None

    def _try(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            self._backend = None
            _log.warning(
                "%s cannot be written: %s. The run goes on; %s has the same numbers.",
                self._workdir.tensorboard,
                error.strerror or error,
                self._workdir.metrics.name,
            )

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _point(line: Mapping[str, Any]) -> Point:
    """Returns the numbers of a line."""
    values = {
        f"{line['phase']}/{name}": value
        for name, value in line.items()
        if isinstance(value, int | float) and name not in LINE_FIELDS
    }
    return Point(line["phase"], line["step"], line["time"], values)


def _flattened(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of a nested config by their names, with a dot between the parts."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
