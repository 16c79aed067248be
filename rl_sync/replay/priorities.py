"""Priorities of inserted groups, for the samplers that use them.

`recency`, `reward` and `variance` are replay strategies of RePO (arXiv:2506.09340). `advantage`
replaces the error by which prioritized experience replay samples (arXiv:1511.05952). Both are
exactly 0 if rewards are equal: the mean of equal float32 numbers is exact in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from rl_sync.types import Group


def recency(group: Group) -> float:
    """The version of the oldest token, counted from 1."""
    return group.oldest_version + 1.0


def reward(group: Group) -> float:
    """The mean reward."""
    return float(group.rewards.mean())


def variance(group: Group) -> float:
    """The variance of the rewards; p(1 − p) if all rewards are 0 or 1."""
    return float(group.rewards.var(dtype=np.float64))


def advantage(group: Group) -> float:
    """The mean absolute deviation of rewards from their mean: the size of unscaled advantages."""
    return float(np.abs(group.rewards - group.rewards.mean(dtype=np.float64)).mean())


def length(group: Group) -> float:
    """The mean number of tokens of a completion."""
    return float(group.completion_mask.sum(axis=-1).mean())


PRIORITIES: Mapping[str, Callable[[Group], float]] = {
    function.__name__: function for function in (variance, advantage, reward, recency, length)
}
"""Priorities by their names in `replay.priority`."""


_BY_PRIORITY = ("prioritized", "max_heap", "min_heap")
"""Samplers that use priorities."""


def priority_of(group: Group, name: str, sampler: str) -> float:
    """Returns the priority of a group in a table.

    It is 1 if the sampler does not use priorities, and never negative if it is `prioritized`.

    Args:
      name: a key of `PRIORITIES`.
      sampler: the table's sampler.
    """
    if sampler not in _BY_PRIORITY:
        return 1.0
    priority = PRIORITIES[name](group)
    return max(0.0, priority) if sampler == "prioritized" else priority
