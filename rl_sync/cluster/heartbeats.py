"""Heartbeats of a run's processes, and the processes that have stopped sending them.

A process sends heartbeats from a separate thread, even while it computes, compiles or waits. A
silent process was stopped, or hangs while it holds the interpreter's lock.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from rl_sync.messages.run_status import Silence
from rl_sync.role_names import role_of

SILENT_SECS = 5.0
"""Seconds of silence after which a process is named in the errors of those that wait for it."""

_LATE_SECS = 1.0


class _Sign(NamedTuple):
    process: int
    doing: str
    at_secs: float


class Heartbeats:
    """The last heartbeat of every process. Thread-safe; all calls use the same clock."""

    def __init__(self, now_secs: float) -> None:
        self._lock = threading.Lock()
        self._signs: dict[str, _Sign] = {}
        self._looked_secs = now_secs

    def heard(self, name: str, process: int, doing: str, now_secs: float) -> None:
        """Records a heartbeat."""
        with self._lock:
            self._signs[name] = _Sign(process, doing, now_secs)

    def left(self, name: str) -> None:
        """Stops expecting heartbeats from a process."""
        with self._lock:
            self._signs.pop(name, None)

    def lost(self, program: str) -> None:
        """Stops expecting heartbeats from a program's processes, until they send some again."""
        with self._lock:
            for name in [name for name in self._signs if role_of(name) == program]:
                del self._signs[name]

    def ticked(self, now_secs: float, since_last_secs: float) -> None:
        """Records that the listener is alive; it must be called regularly.

        If the call is late, the listener itself was paused, perhaps with all other processes, as
        when a machine sleeps. That time does not count as silence.

        Args:
          since_last_secs: planned time between two calls.
        """
        with self._lock:
            late = now_secs - self._looked_secs - since_last_secs
            self._looked_secs = now_secs
            if late > _LATE_SECS:
                self._signs = {
                    name: sign._replace(at_secs=sign.at_secs + late)
                    for name, sign in self._signs.items()
                }

    def silences(self, at_least_secs: float) -> list[Silence]:
        """Returns processes silent for at least `at_least_secs` at the last tick, longest first."""
        with self._lock:
            silences = [
                Silence(name, sign.process, self._looked_secs - sign.at_secs, sign.doing)
                for name, sign in self._signs.items()
                if self._looked_secs - sign.at_secs >= at_least_secs
            ]
        return sorted(silences, key=lambda silence: -silence.secs)
