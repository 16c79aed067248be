"""Draws a step's demonstrations at random."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from rl_sync.sequence_images import pooled
from rl_sync.tasks.task import Task
from rl_sync.types import Demonstrations, RowImages


def draw(task: Task, count: int, words: list[int]) -> Demonstrations:
    """Draws demonstrations uniformly, with replacement.

    Images are those of all rows together, each tile once.

    Args:
      words: seed of the draw, which depends on nothing else.
    """
    random = np.random.default_rng(words)
    chosen = random.integers(0, len(task.demonstrations), count)
    drawn = [task.demonstrations[i] for i in chosen]
    tokens, mask = task.encode_demonstrations(drawn)
    images = None
    if task.processor is not None:
        found = pooled(task.shown(drawn), task.processor.tile_tokens, tokens.shape[1])
        if found is not None:
            fields: dict[str, Any] = {"tiles": found.tiles, "at": found.at}
            images = RowImages(**fields)
    return Demonstrations(jnp.asarray(tokens), jnp.asarray(mask), images=images)
