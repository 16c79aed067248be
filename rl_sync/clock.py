"""The run's clock: that of the launcher's machine, also in processes on other machines.

Clocks of machines differ, some by minutes. A process that a joined machine runs is told by how much
its own clock is behind.
"""

from __future__ import annotations

import os
import time

BEHIND = "RL_SYNC_CLOCK_BEHIND_SECS"
"""Environment variable: seconds to add to this machine's clock."""


def now_secs() -> float:
    """Returns Unix seconds by the run's clock."""
    return time.time() + _behind_secs()


def _behind_secs() -> float:
    try:
        return float(os.environ.get(BEHIND, "0"))
    except ValueError:
        return 0.0
