"""Disturbs a run: kills and stops its processes at random times."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rl_sync.records.json_lines import JsonLinesWriter
from rl_sync.workdir import Workdir

KILL, STOP, PAUSE = "kill", "stop", "pause"
KINDS = (KILL, PAUSE, STOP)
"""Kinds of disturbance: a kill, a stop for some seconds, and a stop for good."""

_PAUSE_SECS = 5.0


class Disturbed(NamedTuple):
    """A disturbance of a process."""

    at_secs: float
    kind: str
    process: str


class Disturbance:
    """Disturbs random processes of a run, in a thread, while the context is entered.

    Args:
      workdir: work directory of the run; `chaos.jsonl` in it records the disturbances.
      processes: returns the ids of the run's processes, by name.
      seed: seed of the draws.
      every_secs: mean time between two disturbances; each time is 0.5 to 1.5 times as long.
      kinds: kinds of disturbance.
      roles: names of processes that may be disturbed; none for all.

    Attributes:
      made: the disturbances so far.
    """

    def __init__(
        self,
        workdir: Workdir,
        processes: Callable[[], Mapping[str, int]],
        *,
        seed: int,
        every_secs: float,
        kinds: Sequence[str] = (KILL,),
        roles: Sequence[str] = (),
    ) -> None:
        self._processes, self._kinds, self._roles = processes, kinds, roles
        self._random, self._every_secs = random.Random(seed), every_secs
        self._lines = JsonLinesWriter(workdir.chaos, vital=False)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._disturb, name="chaos", daemon=True)
        self.made: list[Disturbed] = []

    def __enter__(self) -> Disturbance:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._lines.close()

    def _disturb(self) -> None:
        while not self._over.wait(self._every_secs * self._random.uniform(0.5, 1.5)):
            found = self._processes()
            names = sorted(name for name in found if not self._roles or name in self._roles)
            if names:
                name = self._random.choice(names)
                self._strike(name, found[name], self._random.choice(self._kinds))

    def _strike(self, name: str, process: int, kind: str) -> None:
        made = Disturbed(time.time(), kind, name)
        self.made.append(made)
        self._lines.write({"time": made.at_secs, "kind": kind, "process": name})
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL if kind == KILL else signal.SIGSTOP)
        if kind == PAUSE:
            self._over.wait(_PAUSE_SECS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGCONT)
