"""Backends that record what they get, fail, hang, or are slow."""

from __future__ import annotations

import threading

from rl_sync.records.backends.backend import Backend, MetricPoint


class Recorder:
    """A backend that keeps what it gets, after `open` was set."""

    def __init__(self, *, is_open: bool = True):
        self.got: list[tuple] = []
        self.open = threading.Event()
        if is_open:
            self.open.set()

    def start(self) -> Backend:
        return Backend(self._log, self._resume, self._finish)

    def _log(self, point: MetricPoint) -> None:
        self.open.wait(20)
        self.got.append((point.phase, point.step, dict(point.values)))

    def _resume(self, step, earlier) -> None:
        self.got.append(("resume", step, [point.step for point in earlier]))

    def _finish(self, is_well: bool) -> None:
        self.got.append(("finish", is_well))


started: dict[str, Recorder] = {}


def start(run):
    """Starts a recorder that tests find by the run's work directory."""
    recorder = started[str(run.workdir)] = Recorder()
    recorder.got.append(("start", run))
    return recorder.start()


def start_failing(run):
    """Starts nothing."""
    raise RuntimeError("no account\n  was given.")
