"""Priorities with which groups are inserted: what the samplers that look at priorities prefer.

`recency`, `reward` and `variance` are replay strategies of RePO (arXiv:2506.09340). `advantage`
stands for the error by which prioritized experience replay draws (arXiv:1511.05952).
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
    """The variance of the rewards; p(1 − p) where they are 0 or 1."""
    return float(group.rewards.var())


def advantage(group: Group) -> float:
    """The mean distance of rewards from their mean: the size of the advantages, not scaled."""
    return float(np.abs(group.rewards - group.rewards.mean()).mean())


def length(group: Group) -> float:
    """Tokens of a completion, on average."""
    return float(group.completion_mask.sum(axis=-1).mean())


PRIORITIES: Mapping[str, Callable[[Group], float]] = {
    function.__name__: function for function in (variance, advantage, reward, recency, length)
}
"""By the names that `replay.priority` has for them."""


_BY_PRIORITY = ("prioritized", "max_heap", "min_heap")
"""Samplers that look at priorities."""


def priority_of(group: Group, name: str, sampler: str) -> float:
    """The priority of a group in a table; `prioritized` ones take none below 0.

    It is 1 where the sampler does not look at it.

    Args:
      name: a key of `PRIORITIES`.
      sampler: the table's.
    """
    if sampler not in _BY_PRIORITY:
        return 1.0
    priority = PRIORITIES[name](group)
    return max(0.0, priority) if sampler == "prioritized" else priority
