"""Disturbs a run: kills, stops and starves its processes, at random times or in named windows."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rl_sync.records.chaos_windows import SYNC, VARIABLE, arm
from rl_sync.records.json_lines import JsonLinesWriter
from rl_sync.records.spans import SpanKind
from rl_sync.role_names import MASTER, TRAINER, is_explorer, role_of
from rl_sync.workdir import Workdir

KILL, STOP, PAUSE, STARVE = "kill", "stop", "pause", "starve"
KINDS = (KILL, PAUSE, STOP, STARVE)
"""Kinds of disturbance.

A kill, a stop for some seconds, a stop for good, and a time in which a process gets little of the
processor.
"""

_EXPLORER = "explorer"
WINDOWS: Mapping[str, tuple[str, ...]] = {
    SpanKind.ROLLOUT: (_EXPLORER,),
    SpanKind.SCORE: (_EXPLORER, MASTER),
    SpanKind.INSERT: (_EXPLORER,),
    SpanKind.TRAIN: (TRAINER,),
    SpanKind.TRAIN_AGAIN: (TRAINER,),
    SpanKind.SNAPSHOT: (TRAINER,),
    SpanKind.REPORT: (TRAINER,),
    SpanKind.EVALUATION: (TRAINER, _EXPLORER),
    SpanKind.WAIT: (TRAINER, _EXPLORER),
    SpanKind.COMPILE: (TRAINER, _EXPLORER),
    SYNC: (TRAINER, _EXPLORER),
}
"""Windows, and the roles that have them. `sync` is publishing by the trainer, and pulling."""

_PAUSE_SECS, _STARVE_SECS = 5.0, 10.0
_RUNS_SECS, _STANDS_SECS = 0.02, 0.18
_LONGEST_DELAY_SECS = 0.05
_LOOK_SECS = 0.05


class Disturbed(NamedTuple):
    """A disturbance of a process, in a window if it was meant for one."""

    at_secs: float
    kind: str
    process: str
    window: str | None = None


class DisturbancePlan(NamedTuple):
    """Plan of a run's disturbances.

    Attributes:
      seed: seed of the draws.
      every_secs: mean time between two disturbances; each time is 0.5 to 1.5 times as long.
      kinds: kinds of disturbance.
      roles: names of processes that may be disturbed; none for all.
      windows: names of windows to strike in; none for any time. A window that no process enters
        within `every_secs` is given up. Processes on other machines are not struck.
    """

    seed: int
    every_secs: float
    kinds: Sequence[str] = (KILL,)
    roles: Sequence[str] = ()
    windows: Sequence[str] = ()


class Disturbance:
    """Disturbs random processes of a run, in a thread, while the context is entered.

    Args:
      workdir: work directory of the run; `chaos.jsonl` in it records the disturbances.
      processes: returns the ids of the run's processes, by name.
      plan: their plan.

    Attributes:
      made: the disturbances so far.
    """

    def __init__(
        self,
        workdir: Workdir,
        processes: Callable[[], Mapping[str, int]],
        plan: DisturbancePlan,
    ) -> None:
        self._processes, self._plan, self._random = processes, plan, random.Random(plan.seed)
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
        plan = self._plan
        while not self._over.wait(plan.every_secs * self._random.uniform(0.5, 1.5)):
            window = self._random.choice(plan.windows) if plan.windows else None
            found = self._processes()
            names = sorted(name for name in found if self._may_strike(name, window))
            if not names:
                continue
            name, kind = self._random.choice(names), self._random.choice(plan.kinds)
            if window is None:
                self._strike(name, found[name], kind)
            else:
                self._strike_in(window, name, found[name], kind)

    def _may_strike(self, name: str, window: str | None) -> bool:
        if self._plan.roles and name not in self._plan.roles:
            return False
        role = _EXPLORER if is_explorer(role_of(name)) else name
        return window is None or role in WINDOWS[window]

    def _strike(self, name: str, process: int, kind: str) -> None:
        self._note(kind, name)
        number = signal.SIGKILL if kind == KILL else signal.SIGSTOP
        _send(process, number)
        self._follow(process, kind)

    def _strike_in(self, window: str, name: str, process: int, kind: str) -> None:
        """Lets a process strike itself in a window, and waits until it has."""
        number = signal.SIGKILL if kind == KILL else signal.SIGSTOP
        delay_secs = self._random.uniform(0.0, _LONGEST_DELAY_SECS)
        armed = arm(Path(os.environ[VARIABLE]), role_of(name), window, number, delay_secs)
        until = time.monotonic() + self._plan.every_secs
        while armed.exists() and time.monotonic() < until and not self._over.wait(_LOOK_SECS):
            pass
        if not armed.exists():
            self._note(kind, name, window)
            self._over.wait(delay_secs)
            self._follow(process, kind)
        armed.unlink(missing_ok=True)

    def _note(self, kind: str, name: str, window: str | None = None) -> None:
        made = Disturbed(time.time(), kind, name, window)
        self.made.append(made)
        inside = {} if window is None else {"window": window}
        self._lines.write({"time": made.at_secs, "kind": kind, "process": name, **inside})

    def _follow(self, process: int, kind: str) -> None:
        """Does what follows the first signal."""
        if kind == PAUSE:
            self._over.wait(_PAUSE_SECS)
            _send(process, signal.SIGCONT)
        elif kind == STARVE:
            until = time.monotonic() + _STARVE_SECS
            while time.monotonic() < until and not self._over.wait(_STANDS_SECS):
                _send(process, signal.SIGCONT)
                self._over.wait(_RUNS_SECS)
                _send(process, signal.SIGSTOP)
            _send(process, signal.SIGCONT)


@contextlib.contextmanager
def windows_open() -> Iterator[None]:
    """Lets the processes that are started meanwhile look for strikes in windows."""
    with tempfile.TemporaryDirectory(prefix="rl_sync_chaos_") as folder:
        os.environ[VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[VARIABLE]


def _send(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, number)
