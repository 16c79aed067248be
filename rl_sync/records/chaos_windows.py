"""Windows in which `chaos` strikes: activities that a process may not live to finish.

The launcher writes a file for a role and a window. The role that enters the window deletes the
file, and sends itself the signal in it after the delay in it. So a strike hits activities that are
too short to be seen from outside.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

VARIABLE = "RL_SYNC_CHAOS_WINDOWS"
"""Environment variable with the folder of the files; without it no process looks for any."""

SYNC = "sync"
"""Window of publishing, by the trainer, and of pulling, by explorers; others are kinds of spans."""


def arm(folder: Path, role: str, window: str, number: int, delay_secs: float) -> Path:
    """Writes the file for a role and a window; returns its path.

    Args:
      number: number of the signal.
      delay_secs: time from the window's start to the signal.
    """
    path = _path(folder, role, window)
    partial = path.with_suffix(".tmp")
    partial.write_text(f"{number} {delay_secs}")
    partial.replace(path)
    return path


def lookout(role: str) -> Callable[[str], None] | None:
    """Returns a function to be called with each window that the role enters; None if not needed."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    folder = Path(named)

    def look(window: str) -> None:
        path = _path(folder, role, window)
        try:
            number, delay_secs = path.read_text().split()
            path.unlink()
        except (OSError, ValueError):
            return
        threading.Thread(
            target=_strike, args=(int(number), float(delay_secs)), name="chaos", daemon=True
        ).start()

    return look


def _strike(number: int, delay_secs: float) -> None:
    time.sleep(delay_secs)
    os.kill(os.getpid(), number)


def _path(folder: Path, role: str, window: str) -> Path:
    return folder / f"{role}.{window}"
