"""Orders the prompts of a run: a new permutation for each epoch."""

from __future__ import annotations

import functools

import numpy as np


def prompt_at(ordinal: int, count: int, seed: int, replacement: int = 0) -> int:
    """Returns the index of the prompt at a place in a run's order.

    Args:
      ordinal: place in the order, from 0; every prompt occurs once in each `count` places.
      count: number of prompts.
      seed: seed of the run.
      replacement: number of prompts that were already tried and replaced at this place; the order
        is a different one for each number.
    """
    epoch, place = divmod(ordinal, count)
    return int(_permutation(epoch, count, seed, replacement)[place])


@functools.lru_cache(maxsize=16)
def _permutation(epoch: int, count: int, seed: int, replacement: int) -> np.ndarray:
    # Without replacement, the order depends only on (seed, epoch).
    words = [seed, epoch, replacement] if replacement else [seed, epoch]
    return np.random.default_rng(words).permutation(count)
