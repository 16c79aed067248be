"""Writes metrics for TensorBoard, as files in the work directory."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.summary import hparams

from rl_sync.records.backends.backend import Backend, MetricPoint, TrackedRun

_FLUSH_SECS = 10.0
# With this version TensorBoard takes a session's start for a resumption.
_VERSION, _START = "brain.Event:2", SessionLog.START
_HEADLINES = ("evaluation/accuracy", "rl/reward_mean")
"""The metrics that TensorBoard shows beside hyperparameters."""


def start(run: TrackedRun) -> Backend:
    """Opens a new file in `workdir/tensorboard/`.

    Its functions raise OSError if the file cannot be written.
    """
    events = _Events(run)
    return Backend(events.log, events.resume, events.finish)


class _Events:
    """Writer of one file of events.

    It writes immediately: tensorboardX's own thread dies if the disk is full, and its queue blocks.
    """

    def __init__(self, run: TrackedRun):
        self._folder = run.workdir.tensorboard
        self._folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(self._folder / "events"))
        self._flushed = 0.0
        if run.settings:
            self._describe(run.settings)

    def log(self, point: MetricPoint) -> None:
        values = [Summary.Value(tag=name, simple_value=v) for name, v in point.values.items()]
        event = Event(step=point.step, wall_time=point.secs, summary=Summary(value=values))
        self._writer.write_event(event)
        if time.time() - self._flushed > _FLUSH_SECS:
            self._flushed = time.time()
            self._writer.flush()

    def _describe(self, settings: Mapping[str, Any]) -> None:
        """Writes hyperparameters for TensorBoard's table of runs."""
        texts = {
            name: value if isinstance(value, bool | int | float) else str(value)
            for name, value in settings.items()
        }
        for summary in hparams(texts, dict.fromkeys(_HEADLINES, 0.0)):
            self._writer.write_event(Event(wall_time=time.time(), summary=summary))

    def resume(self, step: int, earlier: Sequence[MetricPoint]) -> None:
        """Makes TensorBoard drop all points of later steps, and rewrites the points of SFT.

        It drops points by their step, whatever the phase.
        """
        now = time.time()
        for said in ({"file_version": _VERSION}, {"session_log": SessionLog(status=_START)}):
            self._writer.write_event(Event(step=step + 1, wall_time=now, **said))
        for point in earlier:
            if point.step > step:
                self.log(point)

    def finish(self, is_well: bool) -> None:
        del is_well
        self._writer.close()
