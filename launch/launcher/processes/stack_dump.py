"""Writes the stacks of a hung process to its log: by the process itself, and by py-spy."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PY_SPY = "py-spy"
_OWN_SECS = 0.5
_PY_SPY_SECS = 10.0


def dump_stacks(pid: int, log: Path, *, answers: bool = True) -> None:
    """Adds the stacks of all threads of a process to its log, as far as they can be had.

    A Python process whose interpreter answers writes them itself, within half a second. If py-spy
    is installed, it adds those that it reads from outside, also of a process that does not answer.

    Args:
      answers: whether the process writes its stacks at SIGUSR1; others would be killed by it.
    """
    if answers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
        time.sleep(_OWN_SECS)
    if (program := _py_spy()) is None:
        return
    with contextlib.suppress(OSError), log.open("ab") as output:
        output.write(f"Stacks of process {pid} by {PY_SPY}:\n".encode())
        output.flush()
        # Without --nonblocking it fails at a process that is stopped. In a group of its own none
        # of its processes outlives the deadline.
        reader = subprocess.Popen(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            reader.wait(_PY_SPY_SECS)
        except subprocess.TimeoutExpired:
            os.killpg(reader.pid, signal.SIGKILL)
            reader.wait()
            output.write(f"{PY_SPY} did not end within {_PY_SPY_SECS:g} s.\n".encode())


def _py_spy() -> str | None:
    """Returns the path of py-spy, of this environment or on the PATH; None without it."""
    beside = Path(sys.executable).with_name(PY_SPY)
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(PY_SPY)
