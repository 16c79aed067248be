"""Processes of a run that start later, or on another machine, for the supervisor."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from rl_sync.addons.clusters.hosts.host_desk import HostDesk
from rl_sync.launcher.processes.supervisor import Process
from rl_sync.roles.exit_status import ENDED, MACHINE_LOST

_KILLED_SECS = 3.0
_LOOK_SECS = 0.05


class RemoteProcess:
    """A process on a machine that has joined.

    Args:
      desk: the desk of the machines.
      name: the process.
      attempt: number of its start.
      log: the launcher's copy of its output.
    """

    group = None

    def __init__(self, desk: HostDesk, name: str, attempt: int, log: Path):
        self.name, self.log = name, log
        self._desk, self._attempt = desk, attempt
        self.lost = ""

    def poll(self) -> int | None:
        """See `Process`; a process that was lost with its machine counts as killed."""
        state = self._desk.state(self.name, self._attempt)
        if isinstance(state, str):
            self.lost = f"{self.name} is lost: {state}"
            return -signal.SIGKILL
        return state

    def dump(self) -> None:
        """See `Process`."""
        self._desk.signal(self.name, self._attempt, "dump")

    def terminate(self) -> None:
        """See `Process`."""
        self._desk.signal(self.name, self._attempt, "terminate")

    def kill(self) -> None:
        """See `Process`; waits for its end for a limited time."""
        if self.poll() is not None:
            return
        self._desk.signal(self.name, self._attempt, "kill")
        deadline = time.monotonic() + _KILLED_SECS
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(_LOOK_SECS)


class AwaitedProcess:
    """A process that starts once its machine has joined, and others whose addresses it needs.

    Args:
      name: the process.
      log: the file of its output.
      start: starts it; returns None as long as something is missing.
      missing: says what is missing.
      timeout_secs: the longest that it may be missing.
      shell: the process that has the machine join; None if it joins by itself.
      was_there: whether a machine that ran it was lost.
    """

    def __init__(
        self,
        name: str,
        log: Path,
        start: Callable[[], Process | None],
        missing: Callable[[], str],
        timeout_secs: float,
        shell: Process | None = None,
        was_there: bool = False,
    ):
        self.name, self._own_log = name, log
        self._start, self._missing = start, missing
        self._shell, self._timeout_secs = shell, timeout_secs
        self._since = time.monotonic()
        self._started: Process | None = None
        self._why_not = ""
        self._late = MACHINE_LOST if was_there else ENDED

    @property
    def log(self) -> Path:
        """The file of its output, or of the shell that could not start it."""
        has_shell_failed = self._started is None and self._shell is not None and not self._why_not
        return self._shell.log if has_shell_failed and self._shell else self._own_log

    @property
    def lost(self) -> str:
        """See `Process`."""
        return self._why_not or getattr(self._started, "lost", "")

    @property
    def group(self) -> int | None:
        """See `Process`."""
        return None if self._started is None else self._started.group

    def poll(self) -> int | None:
        """See `Process`."""
        if self._started is None:
            self._started = self._start()
        if self._started is not None:
            return self._started.poll()
        if self._shell is not None and (status := self._shell.poll()) is not None:
            return status or ENDED
        waited = time.monotonic() - self._since
        if waited > self._timeout_secs:
            self._why_not = (
                f"{self.name} was not started: {self._missing()} after {waited:.0f} s"
                f" (launch.start_secs={self._timeout_secs:g})"
            )
            return self._late
        return None

    def dump(self) -> None:
        """See `Process`."""
        if self._started is not None:
            self._started.dump()

    def terminate(self) -> None:
        """See `Process`."""
        if self._started is not None:
            self._started.terminate()

    def kill(self) -> None:
        """See `Process`; it is not started afterwards."""
        if self._started is not None:
            self._started.kill()
        else:
            self._why_not = self._why_not or f"{self.name} was ended before it was started"
            self._start = _nothing


def _nothing() -> None:
    return None
