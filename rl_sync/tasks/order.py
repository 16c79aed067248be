"""The order in which a run goes through its prompts: a new permutation for each epoch."""

from __future__ import annotations

import functools

import numpy as np


def prompt_at(ordinal: int, count: int, seed: int, replacement: int = 0) -> int:
    """Which of `count` prompts has the given place in a run's order; depends on nothing else.

    Args:
      ordinal: the place, from 0; every prompt comes once in each `count` places.
      count: how many prompts there are.
      seed: the run's.
      replacement: how many prompts that were tried at the place it stands in for; those of each
        number have an order of their own.
    """
    epoch, place = divmod(ordinal, count)
    return int(_permutation(epoch, count, seed, replacement)[place])


@functools.lru_cache(maxsize=16)
def _permutation(epoch: int, count: int, seed: int, replacement: int) -> np.ndarray:
    # The first order is that of (seed, epoch) alone.
    words = [seed, epoch, replacement] if replacement else [seed, epoch]
    return np.random.default_rng(words).permutation(count)
