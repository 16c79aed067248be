"""Limits of processes, and their ends: memory, time, trees of processes, and lost parents.

Linux lists the children of a process in a file. It is read where it exists, since psutil looks at
every process of the machine instead: 12 ms in place of 0.3 ms beside 138 others, and programs in
a sandbox are looked at twenty times a second.
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
"""Looks for processes that others have started while they were killed."""


class ProcessTree(NamedTuple):
    """A process and all processes below it.

    Attributes:
      pids: their numbers; the first is that of the process itself.
      threads: the number of their threads.
    """

    pids: list[int]
    threads: int

    def memory_bytes(self) -> int:
        """Returns the memory that all of them hold; pages that several share count for each."""
        total = 0
        for pid in self.pids:
            with contextlib.suppress(psutil.Error):
                total += psutil.Process(pid).memory_info().rss
        return total


def end_with_parent() -> None:
    """Has the system kill this process with the thread that started it; Linux alone can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants that lose theirs; Linux alone can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def limit_memory(most_bytes: int) -> None:
    """Limits the address space of this process and of those that it starts."""
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))


def limit_more_cpu(secs: float) -> None:
    """Ends this process after so many more seconds of processor time, of all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    most = math.ceil(used.ru_utime + used.ru_stime + secs) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, hard))


def forbid_core_dumps() -> None:
    """Has this process leave no image of its memory if it crashes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def address_space_bytes() -> int:
    """Returns the address space of this process."""
    return psutil.Process().memory_info().vms


def process_tree(pid: int) -> ProcessTree:
    """Returns a process and all processes below it; one that has ended has none."""
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
    """Kills a process of ours, its group, and all processes below it."""
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
    """Describes the end of a process, without its subject.

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
