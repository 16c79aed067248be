"""Limits and ends of processes: memory, time, process trees, and lost parents.

Linux lists the children of a process in a file. We read this file if it exists, because psutil
looks at every process of the machine. With 138 other processes, that takes 12 ms instead of 0.3 ms,
and programs in a sandbox are checked twenty times a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import sys
from typing import NamedTuple

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_ROUNDS = 100
"""Maximum passes over a process tree that is killed, since its processes may start others."""


class ProcessTree(NamedTuple):
    """A process and all processes below it.

    Attributes:
      pids: process ids; the first is the process itself.
      threads: number of threads of all of them.
    """

    pids: list[int]
    threads: int

    def memory_bytes(self) -> int:
        """Returns the memory that all of them hold; a shared page counts once for each process."""
        total = 0
        for pid in self.pids:
            with contextlib.suppress(psutil.Error):
                total += psutil.Process(pid).memory_info().rss
        return total


def end_with_parent() -> None:
    """Makes the system kill this process when the thread that started it ends; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Makes this process adopt descendants that lose their parent; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def limit_memory(most_bytes: int) -> None:
    """Limits the address space of this process and of the processes that it starts."""
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))


def limit_more_cpu(secs: float) -> None:
    """Ends this process after `secs` more seconds of CPU time, summed over its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    most = math.ceil(used.ru_utime + used.ru_stime + secs) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, hard))


def forbid_core_dumps() -> None:
    """Makes this process write no core dump if it crashes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def address_space_bytes() -> int:
    """Returns the address space of this process."""
    return psutil.Process().memory_info().vms


def process_tree(pid: int) -> ProcessTree:
    """Returns a process and all its descendants; nothing if the process has ended."""
    if not os.path.exists("/proc/self/task"):
        return _tree_elsewhere(pid)
    found, threads = [pid], 0
    for parent in found:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                threads += 1
                with open(f"/proc/{parent}/task/{thread}/children") as children:
                    found += map(int, children.read().split())
    return ProcessTree(found, threads)


def kill_tree(pid: int) -> None:
    """Kills a process that this one started, its group, and all its descendants."""
    seen: set[int] = set()
    for _ in range(_KILL_ROUNDS):
        new = {*process_tree(pid).pids[1:]} - seen
        if not new:
            break
        for child in new:
            _kill(child)
        seen |= new
    signal_group(pid, signal.SIGKILL)
    _kill(pid)


def signal_group(leader: int, number: int) -> None:
    """Sends a signal to the group that a process leads, if there is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def kill_group_mates() -> None:
    """Kills the other processes of the group that this process leads, if it leads one."""
    own = os.getpid()
    if os.getpgrp() != own:
        return
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if pid != own and os.getpgid(pid) == own:
                os.kill(pid, signal.SIGKILL)


def end_in_words(exit_code: int) -> str:
    """Describes the end of a process, as a predicate such as "was killed by SIGKILL".

    Args:
      exit_code: negative for a signal.
    """
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = ", as the system does where memory runs out" if -exit_code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _tree_elsewhere(pid: int) -> ProcessTree:
    pids, threads = [pid], 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        below = root.children(recursive=True)
        pids += [one.pid for one in below]
        for one in (root, *below):
            with contextlib.suppress(psutil.Error):
                threads += one.num_threads()
    return ProcessTree(pids, threads)
