"""The named algorithms."""

from __future__ import annotations

from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.algorithms.published import PUBLISHED

FRESH, STALE = "grpo", "decoupled_ppo"
"""Names that stand for None: where no data are stale, and where some may be."""


def named(name: str | None, staleness_bound: int) -> Algorithm:
    """The composition of a name, or the one for data of that staleness.

    Raises:
      ValueError: no algorithm has the name.
    """
    if name is None:
        name = STALE if staleness_bound > 0 else FRESH
    changes = PUBLISHED[name].changes if name in PUBLISHED else {}
    return Algorithm(name=name, **changes)


ALGORITHMS = {name: named(name, 0) for name in PUBLISHED}
"""By the name that a config uses."""
