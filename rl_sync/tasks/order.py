"""The order in which a run goes through its prompts: a new permutation for each epoch."""

from __future__ import annotations

import functools

import numpy as np


def prompt_at(ordinal: int, count: int, seed: int) -> int:
    """Which of `count` prompts has the given place in a run's order; depends on nothing else.

    Args:
      ordinal: the place, from 0; every prompt comes once in each `count` places.
      count: how many prompts there are.
      seed: the run's.
    """
    epoch, place = divmod(ordinal, count)
    return int(_permutation(epoch, count, seed)[place])


@functools.lru_cache(maxsize=4)
def _permutation(epoch: int, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(count)
