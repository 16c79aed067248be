"""Limits of time and memory for a computation on the main thread of a process."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from rl_sync.isolation.process_limits import address_space_bytes

_Result = TypeVar("_Result")
_REPEAT_SECS = 0.1
"""Code that swallows every exception is interrupted again after this time."""
_WALL_FACTOR = 20
"""The limit of wall time over the limit of CPU time: beyond it, the machine is too busy."""


class OutOfTime(BaseException):
    """Raised inside a computation whose time is over; libraries catch `Exception`, not this.

    Attributes:
      is_spent: whether it used up its CPU time; if not, the machine was too busy.
    """

    def __init__(self, is_spent: bool = True) -> None:
        super().__init__()
        self.is_spent = is_spent


class NoLimitsError(RuntimeError):
    """Raised when a computation cannot be interrupted."""


def within(limit_secs: float, memory_bytes: int, compute: Callable[[], _Result]) -> _Result:
    """Computes with a limit of CPU time, and of memory beyond what the process has now.

    Waiting for a busy machine does not count, up to `_WALL_FACTOR` times as much wall time. The
    previous timers and memory limit are restored afterwards.

    Raises:
      OutOfTime: it takes longer.
      MemoryError: it needs more memory.
      NoLimitsError: this is not the main thread, or the platform has no interval timer.
    """
    if threading.current_thread() is not threading.main_thread():
        raise NoLimitsError("Algebra is limited by a signal, which only the main thread receives.")
    if not hasattr(signal, "setitimer"):
        raise NoLimitsError("Algebra is limited by an interval timer, which this platform lacks.")
    armed = True

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if armed:
            raise OutOfTime(is_spent=signum == signal.SIGPROF)

    reset_memory = _limit_memory(memory_bytes)
    before = signal.signal(signal.SIGALRM, interrupt)
    before_of_cpu = signal.signal(signal.SIGPROF, interrupt)
    began = time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, limit_secs * _WALL_FACTOR, _REPEAT_SECS)
    signal.setitimer(signal.ITIMER_PROF, limit_secs, _REPEAT_SECS)
    try:
        return compute()
    finally:
        # This comes first, and calls nothing, so that no alarm interrupts the clean-up.
        armed = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGPROF, before_of_cpu)
        signal.signal(signal.SIGALRM, before)
        reset_memory()
        if left:
            rest = max(left - (time.monotonic() - began), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, rest, interval)


def _limit_memory(extra_bytes: int) -> Callable[[], None]:
    """Limits the address space, and returns a function that restores the old limit."""
    if sys.platform != "linux":
        return lambda: None  # Elsewhere address space is not limited reliably.
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = address_space_bytes() + extra_bytes
    bounds = [wanted, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
