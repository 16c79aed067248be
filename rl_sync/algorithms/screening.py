"""Screening: chooses the groups that are worth training on; other groups are replaced."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

UNBOUNDED = 1e9  # A bound of rewards. JSON, the format of the resolved config, has no infinity.
KEEPS = ("first", "best")
NO_SPREAD, TOO_HARD, TOO_EASY = "no spread", "too hard", "too easy"
FAULTS = (NO_SPREAD, TOO_HARD, TOO_EASY)
"""Reasons why a group is useless for learning."""


@dataclasses.dataclass(frozen=True)
class Screening:
    """Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2): useless groups are replaced.

    Rewards are those of `filter_values`.

    Attributes:
      needs_spread: whether a group must have at least two different rewards.
      mean_low, mean_high: bounds of a group's mean reward.
      max_attempts: maximum number of prompts for one place in the batch. The group of the last
        prompt is always accepted.
    """

    needs_spread: bool
    mean_low: float
    mean_high: float
    max_attempts: int

    @property
    def replaces(self) -> bool:
        """Says whether any group may be replaced."""
        return self.max_attempts > 1

    @property
    def refuses(self) -> bool:
        """Says whether groups can be rejected at all."""
        bounded = self.mean_low > -UNBOUNDED or self.mean_high < UNBOUNDED
        return self.needs_spread or bounded

    def fault(self, rewards: Sequence[float]) -> str | None:
        """Returns the reason why a group with these rewards is useless; None if it is useful."""
        # Rewards are float32 numbers: 0.7 is in [0.7, 1] as it is where the loss is computed.
        mean = np.float32(statistics.fmean(rewards))
        if mean < np.float32(self.mean_low):
            return TOO_HARD
        if mean > np.float32(self.mean_high):
            return TOO_EASY
        if self.needs_spread and max(rewards) == min(rewards):
            return NO_SPREAD
        return None


NO_SCREENING = Screening(False, -UNBOUNDED, UNBOUNDED, 1)
"""Screening that accepts every group."""


def filter_values(
    rewards: Float[np.ndarray, " G"],
    parts: Float[np.ndarray, "G K"] | None,
    weights: Sequence[float],
) -> list[float]:
    """Returns the number of each trajectory that groups are filtered by: the sum of some parts of
    its reward, or its reward.

    Args:
      parts: scores by each part of the reward; None if it has one part.
      weights: weight of each part in the sum; empty for the whole reward.
    """
    if not weights:
        return rewards.tolist()
    assert parts is not None, "the reward has parts"
    return (parts * np.array(weights, np.float32)).sum(axis=1).tolist()


def choose(
    screening: Screening, rewards: Sequence[Sequence[float]], count: int, keep: str
) -> list[int]:
    """Chooses the groups to train on if there are more than needed, and keeps their order.

    Args:
      rewards: rewards of each group, by `filter_values`, in the batch's order.
      count: number of groups needed.
      keep: `first`: the first useful groups, and if these are too few, the first useless ones;
        `best`: the groups whose rewards vary most, as these have the largest advantages and
        gradients; among equals the first.
    """

    def rank(group: int) -> float:
        if keep == "best":
            return -statistics.pvariance(rewards[group])
        return screening.fault(rewards[group]) is not None

    return sorted(sorted(range(len(rewards)), key=rank)[:count])
