"""Writer of a run's metrics, apart from the reader, as TensorBoard's writer imports slowly."""

from __future__ import annotations

import functools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.summary import hparams

from rl_sync.observe.jsonlines import JsonLinesWriter, plain
from rl_sync.observe.metric_catalog import LINE_FIELDS
from rl_sync.observe.metrics import PHASES, read_metrics
from rl_sync.observe.resumption import mark
from rl_sync.spelling import require_one_of
from rl_sync.workdir import Workdir

_FLUSH_SECS = 10.0
# With this version TensorBoard understands a session's start as a resumption.
_VERSION, _START = "brain.Event:2", SessionLog.START
_log = logging.getLogger(__name__)


_HEADLINES = ("evaluation/accuracy", "rl/reward_mean")
"""The metrics that TensorBoard shows beside hyperparameters."""


class MetricsWriter:
    """Writes a run's metrics to `workdir/metrics.jsonl` and `workdir/tensorboard/`.

    A run that resumes appends; see `resume`. The settings in `workdir/config.json`, if there are
    any, are TensorBoard's hyperparameters. The writer is a context manager that closes both.
    """

    def __init__(self, workdir: str | os.PathLike[str]):
        self._workdir = Workdir(workdir)
        self._lines = JsonLinesWriter(self._workdir.metrics, vital=False)
        self._events = _Events(self._workdir)
        if self._workdir.config.exists():
            config = json.loads(self._workdir.config.read_text())
            self._events.describe(dict(_flattened(config)))

    def resume(self, step: int, warm_up: int | None = None) -> None:
        """Marks where the run resumes: earlier lines of later steps become void.

        Args:
          step, warm_up: see `rl_sync.observe.resumption.mark`.
        """
        self._lines.write(mark(step, warm_up))
        # TensorBoard drops all points of later steps, of all phases.
        self._events.forget(step + 1)
        for line in read_metrics(self._workdir, "warm_up"):
            self._show(line["phase"], line["step"], line["time"], line)

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
        now = time.time()
        said = {name: plain(value) for name, value in values.items()}
        self._lines.write({"phase": phase, "step": int(step), "time": now, **said})
        self._show(phase, int(step), now, said)

    def _show(self, phase: str, step: int, now: float, values: Mapping[str, Any]) -> None:
        scalars = {
            f"{phase}/{name}": value
            for name, value in values.items()
            if isinstance(value, int | float) and name not in LINE_FIELDS
        }
        self._events.write(step, now, scalars)

    def close(self) -> None:
        """Flushes and closes both files; closing twice is fine."""
        self._lines.close()
        self._events.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _flattened(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of a nested config by their names, with a dot between the parts."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


class _Events:
    """Writer of the numbers for TensorBoard; it stops after a failed write.

    `metrics.jsonl` has the same numbers. It writes immediately: tensorboardX's own thread dies of a
    full disk, and its queue then blocks.
    """

    def __init__(self, workdir: Workdir):
        self._workdir = workdir
        workdir.tensorboard.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(workdir.tensorboard / "events"))
        self._broken, self._flushed = False, 0.0

    def write(self, step: int, now: float, scalars: Mapping[str, float]) -> None:
        values = [Summary.Value(tag=name, simple_value=v) for name, v in scalars.items()]
        event = Event(step=step, wall_time=now, summary=Summary(value=values))
        self._try(lambda: self._writer.write_event(event))
        if now - self._flushed > _FLUSH_SECS:
            self._flushed = now
            self._try(self._writer.flush)

    def describe(self, hyperparameters: Mapping[str, Any]) -> None:
        """Writes hyperparameters for TensorBoard's table of runs."""
        texts = {
            name: value if isinstance(value, bool | int | float) else str(value)
            for name, value in hyperparameters.items()
        }
        for summary in hparams(texts, dict.fromkeys(_HEADLINES, 0.0)):
            event = Event(wall_time=time.time(), summary=summary)
            self._try(functools.partial(self._writer.write_event, event))

    def forget(self, step: int) -> None:
        """Makes TensorBoard drop the points of a step and of later ones."""
        now = time.time()
        for said in ({"file_version": _VERSION}, {"session_log": SessionLog(status=_START)}):
            event = Event(step=step, wall_time=now, **said)
            self._try(functools.partial(self._writer.write_event, event))

    def close(self) -> None:
        self._try(self._writer.close)
        self._broken = True

    def _try(self, write: Callable[[], object]) -> None:
        if self._broken:
            return
        try:
            write()
        except OSError as error:
            self._broken = True
            _log.warning(
                "%s cannot be written: %s. The run goes on; %s has the same numbers.",
                self._workdir.tensorboard,
                error.strerror or error,
                self._workdir.metrics.name,
            )
