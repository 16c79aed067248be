"""Batches of the task's own data, for runs without generation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int

from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.cluster.session import Session
from rl_sync.learning.learning_settings import PAIR
from rl_sync.tasks.demonstrations import draw
from rl_sync.tasks.task import Task
from rl_sync.types import NO_LEASE, Consumed, Group

Drawn = tuple[Int[np.ndarray, "rows T"], Bool[np.ndarray, "rows T"], Float[np.ndarray, " rows"]]
"""Tokens, completion mask, and reward of each row of a step."""
Drawing = Callable[[int, list[int]], Drawn]
"""A function that draws rows, given the number of rows and the words of a seed."""


@dataclasses.dataclass(frozen=True)
class DataReader:
    """A reader (see `GroupSource`) whose groups were not generated: their rows are data rows.

    They count as fresh, and their behavior policy is unknown.

    Attributes:
      session: the trainer's session.
      draw: draws the rows of a step.
    """

    session: Session
    draw: Drawing

    def next(self, step: int) -> Consumed:
        """Returns the groups of a step, which depend only on the seed and the step.

        Raises:
          RunStoppedError: the run is being stopped.
        """
        self.session.check()
        settings = self.session.settings
        count, size = settings.trainer.groups_per_step, settings.trainer.group_size
        # One word more than in SFT's seeds, so that step t does not draw the t-th batch of SFT.
        tokens, mask, rewards = (
            array.reshape(count, size, *array.shape[1:])
            for array in self.draw(count * size, [settings.seed, step, count * size])
        )
        groups = [
            Group(
                lease_id=NO_LEASE,
                ordinal=(step - 1) * count + i,
                prompt_id=NO_LEASE,
                explorer=0,
                tokens=tokens[i],
                completion_mask=mask[i],
                behavior_logprobs=np.zeros(mask[i].shape, np.float32),
                policy_versions=np.where(mask[i], step - 1, -1).astype(np.int32),
                rewards=rewards[i],
            )
            for i in range(count)
        ]
        return Consumed(groups, [])

    def log(self, step: int, batch: Consumed) -> None:
        """Does nothing: batches can be drawn again."""

    def settle(self) -> None:
        """Does nothing: batches can be drawn again."""

    def close(self, reason: str) -> None:
        """Does nothing: no group was sampled in advance."""


def drawing(algorithm: Algorithm, task: Task) -> Drawing:
    """Returns the function that draws training rows for an algorithm without generation."""
    return functools.partial(_pairs if algorithm.scores else _demonstrations, task)


def _demonstrations(task: Task, rows: int, words: list[int]) -> Drawn:
    """Draws demonstrations, which have no reward."""
    drawn = draw(task, rows, words)
    return np.asarray(drawn.tokens), np.asarray(drawn.mask), np.zeros(rows, np.float32)


def _pairs(task: Task, rows: int, words: list[int]) -> Drawn:
    """Draws preference pairs; their margins are the rewards of the chosen completions."""
    drawn = np.random.default_rng(words).integers(0, len(task.preferences), rows // PAIR)
    pairs = [task.preferences[i] for i in drawn]
    rewards = np.zeros(rows, np.float32)
    rewards[::PAIR] = [pair.margin for pair in pairs]
    return *task.encode_preferences(pairs), rewards
