"""Writer of a run's metrics: lines of a file, and numbers for backends."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Sequence

from rl_sync.records.backends.backend import Backend, Labels, MetricPoint, TrackedRun
from rl_sync.records.backends.backend_catalog import TENSORBOARD, starter
from rl_sync.records.backends.delivery_thread import BackendThread
from rl_sync.records.json_lines import JsonLinesWriter, JsonObject, plain
from rl_sync.records.metric_catalog import LINE_FIELDS, MetricValues
from rl_sync.records.metrics import PHASES, read_metrics
from rl_sync.records.resumption import mark
from rl_sync.setting import flat
from rl_sync.spelling import require_one_of
from rl_sync.workdir import Workdir

_FINISH_SECS = 30.0


class MetricsWriter:
    """Writes a run's metrics to `workdir/metrics.jsonl`, and hands them to backends.

    A run that resumes appends; see `resume`. The settings in `workdir/config.json`, if there are
    any, go to the backends as hyperparameters. As a context manager the writer closes at the end,
    and waits for the backends.

    Args:
      workdir: the run's work directory.
      backends: keys of `rl_sync.records.backends.backend_catalog.BACKENDS`, or references.
      labels: the run's names in the backends.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        backends: Sequence[str] = (TENSORBOARD,),
        labels: Labels = Labels(),  # noqa: B008
    ):
        self._workdir = Workdir(workdir)
        self._lines = JsonLinesWriter(self._workdir.metrics, vital=False)
        settings: JsonObject = {}
        if self._workdir.config.exists():
            settings = dict(flat(json.loads(self._workdir.config.read_text())))
        records = self._workdir.metrics.read_bytes().count(b"\n")
        run = TrackedRun(self._workdir, settings, labels, records)
        self._couriers = [
            BackendThread(name, functools.partial(_start, name, run)) for name in backends
        ]

    def resume(self, step: int, sft_step: int | None = None) -> None:
        """Marks where the run resumes: earlier lines of later steps become void.

        Args:
          step, sft_step: see `rl_sync.records.resumption.mark`.
        """
        self._lines.write(mark(step, sft_step))
        earlier = [_point(line) for line in read_metrics(self._workdir)]
        for courier in self._couriers:
            courier.resume(step, earlier)

    def write(self, phase: str, step: int, values: MetricValues) -> None:
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
        for courier in self._couriers:
            courier.log(_point(line))

    def close(self, is_well: bool = True) -> None:
        """Closes the file and lets the backends finish; closing twice is fine.

        Args:
          is_well: whether the run went well; some backends show it.
        """
        self._lines.close()
        for courier in self._couriers:
            courier.close(is_well)

    def wait(self, most_secs: float) -> None:
        """Waits until the backends have finished; those that take longer are left alone."""
        deadline = time.monotonic() + most_secs
        for courier in self._couriers:
            courier.wait(deadline)

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.wait(_FINISH_SECS)


def _start(name: str, run: TrackedRun) -> Backend:
    backend = starter(name)(run)
    if not isinstance(backend, Backend):
        raise TypeError(f"it returned a {type(backend).__name__}, not a Backend")
    return backend


def _point(line: JsonObject) -> MetricPoint:
    """Returns the numbers of a line."""
    values = {
        f"{line['phase']}/{name}": value
        for name, value in line.items()
        if isinstance(value, int | float) and name not in LINE_FIELDS
    }
    return MetricPoint(line["phase"], line["step"], line["time"], values)
