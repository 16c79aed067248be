"""Rewards that take a given time; worker processes import nothing else for them."""

from __future__ import annotations

import time
from typing import Any


def slow(row: Any, completion: Any, secs: float = 0.0) -> float:
    """Takes its time, and gives 1."""
    del row, completion
    time.sleep(secs)
    return 1.0


def busy(row: Any, completion: Any, secs: float = 0.001) -> float:
    """Computes for a time, and gives 1."""
    del row, completion
    end = time.perf_counter() + secs
    while time.perf_counter() < end:
        pass
    return 1.0
