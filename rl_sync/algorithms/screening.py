"""Screening: choosing groups that are worth training on, and replacing those that are not."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

UNBOUNDED = 1e9  # Of rewards; infinity is no JSON, which the resolved config is kept as.
KEEPS = ("first", "best")
NO_SPREAD, TOO_HARD, TOO_EASY = "no spread", "too hard", "too easy"
FAULTS = (NO_SPREAD, TOO_HARD, TOO_EASY)
"""The reasons why a group teaches nothing."""


@dataclasses.dataclass(frozen=True)
class Screening:
    """Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2): groups that teach nothing give way.

    Attributes:
      filter_zero_variance: whether a group must have more than one reward.
      mean_low, mean_high: bounds of its mean reward.
      max_attempts: how many prompts are tried for a place; 1 for its own alone. The last one's
        group is taken as it is.
    """

    filter_zero_variance: bool
    mean_low: float
    mean_high: float
    max_attempts: int

    @property
    def replaces(self) -> bool:
        """Says whether any group may be replaced."""
        return self.max_attempts > 1

    @property
    def refuses(self) -> bool:
        """Says whether there is anything that a group is refused for."""
        bounded = self.mean_low > -UNBOUNDED or self.mean_high < UNBOUNDED
        return self.filter_zero_variance or bounded

    def fault(self, rewards: Sequence[float]) -> str | None:
        """The reason why a group of these rewards teaches nothing; None where it teaches."""
        mean = statistics.fmean(rewards)
        if mean < self.mean_low:
            return TOO_HARD
        if mean > self.mean_high:
            return TOO_EASY
        if self.filter_zero_variance and max(rewards) == min(rewards):
            return NO_SPREAD
        return None


NO_SCREENING = Screening(False, -UNBOUNDED, UNBOUNDED, 1)
"""Every group is taken as it is."""


def choose(
    screening: Screening, rewards: Sequence[Sequence[float]], count: int, keep: str
) -> list[int]:
    """Chooses, of more groups than are needed, those that are trained on; in their order.

    Args:
      rewards: of each group, in the batch's order.
      count: how many are needed.
      keep: `first`, the first that teach anything, then the first of the others; `best`, those
        whose rewards have the greatest variance, the first among equals (as the advantage of a
        trajectory is what it is trained by, these teach most).
    """

    def rank(group: int) -> float:
        if keep == "best":
            return -statistics.pvariance(rewards[group])
        return screening.fault(rewards[group]) is not None

    return sorted(sorted(range(len(rewards)), key=rank)[:count])
