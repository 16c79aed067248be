"""Accuracy of a reward model on held-out pairs, and the distribution of its scores."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
from jaxtyping import Array, Float

from rl_sync.cluster.session import Session
from rl_sync.learning.learning_settings import PAIR
from rl_sync.messages.master_calls import HandInMeasured
from rl_sync.models.heads import last_scalars
from rl_sync.models.placement import put
from rl_sync.models.sharding import using
from rl_sync.records import accuracy
from rl_sync.records.accuracy import JudgedAnswer, Problem
from rl_sync.records.spans import SpanKind
from rl_sync.roles.trainer.reward_trainer import RewardTrainer
from rl_sync.tasks.task import Task
from rl_sync.types import Params


@dataclasses.dataclass
class PairEvaluator:
    """Measures how many held-out pairs a reward model puts in the right order.

    Attributes:
      session: the trainer's session.
      trainer: the actor.
      task: task with the pairs.
      pairs: maximum number of pairs of an evaluation.
      rows: number of rows that are scored at once, a multiple of the batch shards of the mesh.
    """

    session: Session
    trainer: RewardTrainer
    task: Task
    pairs: int
    rows: int

    def hand_in(self, params: Params, moment: str, step: int) -> None:
        """Evaluates the accuracy after a step, and reports it to the master."""
        values = self.accuracy(params, self.pairs)
        self.session.call(HandInMeasured(moment, step, values))

    def accuracy(self, params: Params, problems: int) -> dict[str, float]:
        """Measures the fraction of pairs whose chosen completion has the higher score.

        A tie counts as wrong.

        Args:
          params: parameters of the reward model.
          problems: maximum number of pairs.

        Returns:
          See `rl_sync.records.accuracy.measure`; also the mean and the standard deviation of all
          scores, and the mean score difference of a pair.
        """
        most = min(problems, self.pairs)
        pairs = self.task.held_out_preferences[:most]
        with self.session.spans.span(SpanKind.EVALUATION, problems=len(pairs)) as attributes:
            tokens, mask = self.task.encode_preferences(pairs)
            scores = self._scores(params, tokens, mask)
            chosen, rejected = scores.reshape(-1, PAIR).T
            values = accuracy.measure(
                [
                    Problem([JudgedAnswer(bool(right))], self.task.is_seen(pair.prompt))
                    for right, pair in zip(chosen > rejected, pairs, strict=True)
                ]
            )
            values |= {
                "score_mean": float(scores.mean()),
                "score_std": float(scores.std()),
                "score_gap": float((chosen - rejected).mean()),
            }
            attributes.update(values)
        return values

    def _scores(
        self, params: Params, tokens: np.ndarray, mask: np.ndarray
    ) -> Float[np.ndarray, " rows"]:
        lengths = mask.shape[1] - np.argmax(mask[:, ::-1], axis=1)
        missing = -len(tokens) % self.rows  # All batches have one shape.
        tokens = np.concatenate([tokens, np.zeros((missing, tokens.shape[1]), tokens.dtype)])
        lengths = np.concatenate([lengths, np.ones(missing, lengths.dtype)])
        layout, found = self.trainer.layout, []
        for first in range(0, len(tokens), self.rows):
            some = slice(first, first + self.rows)
            placed = put(tokens[some], layout.sharding(("batch",), tokens[some].shape))
            ends = put(lengths[some], layout.repeated)
            found.append(np.asarray(_scored(self.trainer, params, placed, ends)))
        return np.concatenate(found)[: len(mask)]


@functools.partial(jax.jit, static_argnums=0)
def _scored(
    trainer: RewardTrainer, params: Params, tokens: Array, lengths: Array
) -> Float[Array, " rows"]:
    with using(trainer.layout):
        scores = last_scalars(trainer.scalars(params, tokens), lengths)
    return jax.lax.with_sharding_constraint(scores, trainer.layout.repeated)
