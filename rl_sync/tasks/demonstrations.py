"""Draws a step's demonstrations at random."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from rl_sync.tasks.task import Task
from rl_sync.types import Demonstrations


def draw(task: Task, count: int, words: list[int]) -> Demonstrations:
    """Draws demonstrations uniformly, with replacement.

    Args:
      words: seed of the draw, which depends on nothing else.
    """
    random = np.random.default_rng(words)
    chosen = random.integers(0, len(task.demonstrations), count)
    tokens, mask = task.encode_demonstrations([task.demonstrations[i] for i in chosen])
    return Demonstrations(jnp.asarray(tokens), jnp.asarray(mask))
