"""Estimators of a policy's success on problems with several judged completions.

Letters in shapes: P problems.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

_Z = 1.959963984540054  # The 97.5 % quantile of the normal distribution.


class MeanEstimate(NamedTuple):
    """A mean over problems, and the ends of its 95 % confidence interval."""

    value: float
    low: float
    high: float


def pass_at_k(completions: int, solved: int, k: int) -> float:
    """Estimates the probability that at least one of k completions solves a problem.

    1 − C(n−c, k) / C(n, k), without bias for any n ≥ k; Chen et al., arXiv:2107.03374, equation 1.

    Args:
      completions: n, number of judged completions.
      solved: c, number of completions that solve it.

    Raises:
      ValueError: k is below 1 or above n, or c is not between 0 and n.
    """
    if not 1 <= k <= completions or not 0 <= solved <= completions:
        raise ValueError(f"pass@{k} of {solved} among {completions} completions is not defined.")
    return 1.0 - math.comb(completions - solved, k) / math.comb(completions, k)


def majority(votes: Sequence[str | None], solved: Sequence[bool]) -> float:
    """Rates, from 0 to 1, whether the most frequent answer is right; Wang et al., arXiv:2203.11171.

    The rating of an answer is the share of its completions that solve the problem. If several
    answers are the most frequent, the result is the mean of their ratings.

    Args:
      votes: answer of each completion; None if it agrees with no other. At least one.
      solved: whether each completion solves the problem.
    """
    verdicts: dict[str | int, list[bool]] = {}
    for place, (vote, is_solved) in enumerate(zip(votes, solved, strict=True)):
        verdicts.setdefault(place if vote is None else vote, []).append(is_solved)
    most = max(map(len, verdicts.values()))
    shares = [sum(of) / len(of) for of in verdicts.values() if len(of) == most]
    return sum(shares) / len(shares)


def mean_of(values: Float[np.ndarray, " P"], completions: int) -> MeanEstimate:
    """Estimates a mean over problems, each of which has a value from 0 to 1.

    Problems are a sample, and the completions of one problem are not independent. So the standard
    error is clustered by problem: it is computed from the P values, one per problem (Miller,
    arXiv:2411.00640, section 2.2). The interval is Wilson's (1927) at the effective number of
    problems n = p(1 − p) / SE²: it stays within 0 and 1, and does not vanish if all problems or
    none are solved. With one completion per problem n is P, and this is Wilson's interval itself.

    Args:
      values: at least one.
      completions: number of completions of all problems, an upper bound of n.
    """
    mean, count = float(np.mean(values)), len(values)
    spread = mean * (1.0 - mean)
    squared_error = float(np.var(values)) / count
    effective = float(count)
    if spread > 0.0:
        effective = spread / max(squared_error, spread / max(completions, count))
    return MeanEstimate(mean, *_wilson(mean, effective))


def _wilson(share: float, count: float) -> tuple[float, float]:
    """Computes the ends of Wilson's score interval."""
    factor = 1.0 / (1.0 + _Z**2 / count)
    centre = factor * (share + _Z**2 / (2.0 * count))
    half = factor * _Z * math.sqrt(share * (1.0 - share) / count + _Z**2 / (4.0 * count**2))
    return max(0.0, centre - half), min(1.0, centre + half)
