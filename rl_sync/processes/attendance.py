"""Signs of life of the processes of a run: who gave the last one when, and who is silent.

A process gives them from a thread of its own, also while it computes, compiles or waits. One that
is silent is stopped, or stuck with the interpreter in its hands.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from rl_sync.roles import role_of

SILENT_SECS = 5.0
"""After so long without a sign of life, a process is named where others wait for it."""

_LATE_SECS = 1.0


class Silence(NamedTuple):
    """A process that gives no signs of life.

    Attributes:
      name: see `process_name`.
      process: its number on its machine.
      secs: how long it has been silent.
      doing: what it was doing when it was last heard of.
    """

    name: str
    process: int
    secs: float
    doing: str

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - self.secs))
        return (
            f"{self.name} (process {self.process}) hangs, or was stopped: it has given no sign of"
            f" life for {self.secs:.0f} s, since {since}, when it was {self.doing}"
        )


class _Sign(NamedTuple):
    process: int
    doing: str
    at_secs: float


class Attendance:
    """Who is there; safe to use from several threads, which give the time by one clock."""

    def __init__(self, now_secs: float) -> None:
        self._lock = threading.Lock()
        self._signs: dict[str, _Sign] = {}
        self._looked_secs = now_secs

    def heard(self, name: str, process: int, doing: str, now_secs: float) -> None:
        """Takes a sign of life."""
        with self._lock:
            self._signs[name] = _Sign(process, doing, now_secs)

    def left(self, name: str) -> None:
        """Expects no more signs of a process."""
        with self._lock:
            self._signs.pop(name, None)

    def lost(self, program: str) -> None:
        """Expects no more signs of any process of a program, until there are some again."""
        with self._lock:
            for name in [name for name in self._signs if role_of(name) == program]:
                del self._signs[name]

    def ticked(self, now_secs: float, since_last_secs: float) -> None:
        """Takes note that whoever listens is awake; called again and again.

        If that is late, it was the listener that stood still, perhaps with all the others, as when
        a machine is paused: that time is nobody's silence.

        Args:
          since_last_secs: how long after the last call it was to be called.
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
        """Those that were silent for so long at the last tick, the longest first."""
        with self._lock:
            silences = [
                Silence(name, sign.process, self._looked_secs - sign.at_secs, sign.doing)
                for name, sign in self._signs.items()
                if self._looked_secs - sign.at_secs >= at_least_secs
            ]
        return sorted(silences, key=lambda silence: -silence.secs)
