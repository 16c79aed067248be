"""The launcher's child processes: each is started in its own process group, watched and ended.

A child's standard input is a pipe from the launcher. However the launcher dies, the pipe closes,
and the child ends itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rl_sync.cluster import malloc
from rl_sync.isolation.machine_limits import address_hint
from rl_sync.isolation.process_limits import signal_group
from rl_sync.launcher.processes.stack_dump import dump_stacks
from rl_sync.roles.exit_status import DEVICE_FULL, ENDED, FAILED, HANDED_OVER, MACHINE_LOST

_LAST_LINES = 15
_CRASH = "Fatal Python error: "
_OUT_OF_MEMORY = (FAILED, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS)
"""Exit statuses of processes that got no more memory, and of others."""
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, MACHINE_LOST, HANDED_OVER)
"""Exit statuses of processes that did not end by an error of their own."""


class Process(Protocol):
    """A watched child: a role, or the replay server."""

    name: str

    @property
    def log(self) -> Path:
        """The file of its output."""

    @property
    def group(self) -> int | None:
        """Id of its process group; None if it is not on this machine."""

    @property
    def lost(self) -> str:
        """A sentence on how it was lost, if it was not seen to end; else empty."""

    def poll(self) -> int | None:
        """Returns its exit status, negative for a signal; None while it runs."""

    def dump(self) -> None:
        """Lets it write the stacks of its threads to its log, if it can."""

    def terminate(self) -> None:
        """Asks it, and all processes that it started, to end."""

    def kill(self) -> None:
        """Kills it, and all processes that it started."""


class OtherMachines(Protocol):
    """The other machines of a run, which have processes of it."""

    def has(self, name: str) -> bool:
        """Says whether a process runs on another machine."""

    def place(self, name: str, count: int) -> tuple[str | None, list[int]]:
        """Returns the address of a process's machine and free ports there, or None before."""

    def start(self, name: str, arguments: Sequence[str]) -> Process | None:
        """Starts a process; returns None if its machine has not joined."""

    def awaited(self, name: str, start: Callable[[], Process | None]) -> Process:
        """Returns a process that starts once its machine has joined."""

    def look(self) -> None:
        """Notices machines that were lost."""

    def close(self, status: int) -> None:
        """Lets the machines leave, with the exit status of the run."""


@dataclasses.dataclass
class RoleProcess:
    """Process of a role.

    Attributes:
      name: the role.
      log: the file of its output.
    """

    name: str
    log: Path
    _popen: subprocess.Popen[bytes]
    lost: str = ""

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        directory: Path | None = None,
    ) -> RoleProcess:
        """Starts a command whose output is added to the log.

        Args:
          environment: additions to this process's environment.
          directory: its current directory; None for this process's.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=directory,
                env={
                    **malloc.environment(os.environ),
                    "PYTHONUNBUFFERED": "1",
                    **environment,
                },
            )
        return cls(name, log, popen)

    def tell(self, line: str) -> None:
        """Writes a line to its standard input, which stays open."""
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):  # It has ended.
            self._popen.stdin.write(f"{line}\n".encode())
            self._popen.stdin.flush()

    @property
    def group(self) -> int:
        """See `Process`."""
        return self._popen.pid

    def poll(self) -> int | None:
        """See `Process`."""
        return self._popen.poll()

    def dump(self) -> None:
        """See `Process`."""
        dump_stacks(self._popen.pid, self.log)

    def terminate(self) -> None:
        """See `Process`."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """See `Process`."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        signal_group(self._popen.pid, number)
        if number == signal.SIGKILL:
            self._popen.wait()


@dataclasses.dataclass(frozen=True)
class Death:
    """The death of a child: it ended too early, or was killed because it hung.

    Attributes:
      name: the child's name.
      status: its exit status, negative for a signal.
      log: its log.
      hung: a sentence with the evidence that it hung, which begins with its name; None if it did
        not hang.
      lost: see `Process`.
    """

    name: str
    status: int
    log: Path
    hung: str | None = None
    lost: str = ""

    @property
    def was_killed(self) -> bool:
        """True if it was killed from outside, or was lost with its machine."""
        return self.status in _FROM_OUTSIDE

    @property
    def handed_over(self) -> bool:
        """True if it was asked to end, and its work in flight goes on elsewhere."""
        return self.status == HANDED_OVER

    def __str__(self) -> str:
        if self.hung is not None:
            return self.hung
        if self.lost:
            return self.lost
        if self.handed_over:
            how = "was asked to end, and handed over its work"
        elif self.status < 0:
            how = f"was killed by {signal.Signals(-self.status).name}"
        else:
            how = f"ended with exit status {self.status}"
        return f"{self.name} {how}"

    def report(self, others: Sequence[Death], *, is_explained: bool = False) -> str:
        """Describes the death, with the end of the child's log and the log's path.

        Args:
          others: deaths that followed.
          is_explained: whether the reason is told already, so that the log is only named.
        """
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        knock_on = "; after it " + ", ".join(map(str, others)) if others else ""
        if is_explained:
            said = ""
        elif self.status in (ENDED, DEVICE_FULL) and (reason := _reason(self.name, lines)):
            said = f" {reason}"
        else:
            quoted = "\n".join(f"  | {line}" for line in _telling(lines))
            said = f" The last lines of its log:\n{quoted}" if lines else " Its log is empty."
        hint = address_hint() if self.status in _OUT_OF_MEMORY else ""
        return f"{self}{knock_on}.{hint}{said}\nThe whole log: {self.log}"


def _reason(name: str, lines: Sequence[str]) -> str:
    """Returns the reason for which a role has ended itself, from its log; empty without one."""
    failed = f" ERROR {name.partition('/')[0]} failed: "
    for at in reversed(range(len(lines))):
        _, found, said = lines[at].partition(failed)
        if found:
            return "\n".join([said, *lines[at + 1 :]][:_LAST_LINES])
    return ""


def _telling(lines: Sequence[str]) -> Sequence[str]:
    """Returns the end of a log; of a crash the lines before its stacks, which say why."""
    crashes = [at for at, line in enumerate(lines) if line.startswith(_CRASH)]
    end = crashes[-1] + 1 if crashes else len(lines)
    return lines[max(0, end - _LAST_LINES) : end]


def likeliest_first(deaths: Sequence[Death]) -> list[Death]:
    """Sorts deaths: likely causes come first, the others keep their order.

    A child killed from outside is a likely cause; an error may follow from the loss of a peer.
    """
    return sorted(deaths, key=lambda death: not death.was_killed)


class Supervisor:
    """All children of one run."""

    def __init__(self) -> None:
        self._processes: dict[str, Process] = {}

    def add(self, process: Process) -> None:
        """Watches a started process."""
        self._processes[process.name] = process

    def deaths(self, but_not: Sequence[str] = ()) -> list[Death]:
        """Returns the children that should still run but have died, the likeliest cause first.

        A child may end with status 0, except the master and the replay server, which serve the
        others.

        Args:
          but_not: the children to leave out.
        """
        deaths = []
        for name, process in self._processes.items():
            status = process.poll()
            if status is None or name in but_not:
                continue
            if status != 0 or name in ("master", "replay"):
                deaths.append(Death(name, status, process.log, lost=process.lost))
        return likeliest_first(deaths)

    def groups(self) -> dict[str, int]:
        """Returns the process group of each child that runs, by the child's name."""
        running = [*self._processes.values()]
        return {
            one.name: one.group for one in running if one.poll() is None and one.group is not None
        }

    def end(self, names: Sequence[str]) -> None:
        """Kills children, and stops watching them."""
        for name in names:
            if name in self._processes:
                self._processes.pop(name).kill()

    def end_hung(self, name: str, why: str) -> Death | None:
        """Kills a hung child and returns its death, or None if it no longer runs.

        Its log gets the stacks of its threads before.

        Args:
          why: see `Death.hung`.
        """
        process = self._processes.get(name)
        if process is None or process.poll() is not None:
            return None
        process.dump()
        self.end([name])
        return Death(name, -signal.SIGKILL, process.log, why)

    def living(self, names: Sequence[str]) -> list[str]:
        """Returns the named children that still run."""
        return [n for n in names if n in self._processes and self._processes[n].poll() is None]

    def wait(self, names: Sequence[str], timeout_secs: float) -> list[str]:
        """Waits for children to end; returns those that still run."""
        deadline = time.monotonic() + timeout_secs
        while (living := self.living(names)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return living

    def end_all(self, grace_secs: float = 3.0) -> None:
        """Ends every child: terminates it, waits up to `grace_secs`, then kills it."""
        names = list(self._processes)
        for name in self.living(names):
            self._processes[name].terminate()
        self.wait(names, grace_secs)
        for process in self._processes.values():
            process.kill()
