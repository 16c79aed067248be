"""Preparation of a batch before a step's first update: forward passes and credit assignment.

Letters in shapes: B rows, T positions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from rl_sync.algorithms.algorithm import SAMPLED
from rl_sync.algorithms.centering import with_rest
from rl_sync.learning import credit, objective
from rl_sync.learning.drawing_versions import DrawnScores, KeptVersions, scored
from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.learning.microbatches import OfRows, map_rows
from rl_sync.learning.objective import BatchExperience, LossConfig, Metrics
from rl_sync.learning.teachers import AnyTeacher, logprobs_by
from rl_sync.learning.train_state import TrainState
from rl_sync.models.sharding import constrain
from rl_sync.types import Params, Rows, TrainBatch


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Prepares batches for the loss.

    Attributes:
      loss: the settings of the loss.
      forward: the model's passes.
      updates: number of updates of a step.
      kept: versions that score the tokens that they drew; None if the explorers' log-probabilities
        are used.
    """

    loss: LossConfig
    forward: Forward
    updates: int
    kept: KeptVersions | None = None

    @property
    def scores_in_update(self) -> bool:
        """True if an update's own log-probabilities are those of the weights that drew its tokens.

        It is so if data are never stale and a step has one update. Then no pass before the update
        is needed, unless something else needs the log-probabilities before.
        """
        if self.kept is None or self.kept.count or self.updates > 1:
            return False
        algorithm = self.loss.algorithm
        if algorithm.distillation == SAMPLED:
            return False
        return not algorithm.looks_ahead and not (
            algorithm.needs_reference and algorithm.kl_place == "reward"
        )

    def experience(
        self,
        state: TrainState,
        trained: Params,
        frozen: Params,
        batch: TrainBatch,
        teachers: Sequence[AnyTeacher] = (),
    ) -> tuple[BatchExperience, Metrics]:
        """Computes the inputs of a step's losses from its batch, and metrics of the batch.

        Args:
          state: state before the step.
          trained, frozen: the policy's parameters.
          teachers: the policy's teachers, if it has some.
        """
        rows, mask = batch.rows, batch.rows.completion_mask
        staleness = jnp.where(mask, state.step - rows.policy_versions, 0)
        scores_of = functools.partial(self._scores, frozen, rows)
        ref_logprobs = proximal = None
        if state.ref_params is not None:
            ref_logprobs = scores_of(state.ref_params, replays=False).logprobs
        if objective.needs_proximal(self.loss.algorithm, self.updates):
            proximal = scores_of(trained)
        values = self._values(state, trained, frozen, rows)
        recorded = mismatch = None
        if self.kept is not None and not self.scores_in_update:
            recorded = rows.behavior_logprobs
            rows, mismatch = scored(
                rows, state.step, trained, state.drawing, scores_of, start=proximal
            )
            batch = batch._replace(rows=rows)
        weight, teacher_logprobs = state.kl_coefficient, None
        if teachers and self.loss.algorithm.distillation == SAMPLED:
            teacher_logprobs = self._by_rows(functools.partial(logprobs_by, teachers), rows)
        estimate, weights, metrics = credit.give(
            self.loss, batch, ref_logprobs, values, weight, teacher_logprobs
        )
        metrics = _replicated(metrics)
        if ref_logprobs is not None:
            metrics["kl_coefficient"] = jnp.float32(
                self.loss.algorithm.kl_coefficient if weight is None else weight
            )
        metrics["staleness_mean"] = staleness.sum() / jnp.maximum(mask.sum(), 1)
        metrics["staleness_max"] = staleness.max().astype(jnp.float32)
        if mismatch is not None:
            metrics["mismatch"] = mismatch
        experience = BatchExperience(
            rows=rows,
            staleness=staleness,
            estimate=estimate,
            weights=weights,
            proximal_logprobs=None if proximal is None else proximal.logprobs,
            ref_logprobs=ref_logprobs,
            values=values,
            recorded_logprobs=recorded,
            proximal_sampler=None if proximal is None else proximal.sampler,
            teacher_logprobs=teacher_logprobs,
        )
        return experience, metrics

    def _scores(
        self, frozen: Params, rows: Rows, trained: Params, replays: bool = True
    ) -> DrawnScores:
        """Computes the log-probability of each token, and what score centering needs beside it.

        Args:
          replays: whether tokens go to the experts that their rows name.
        """

        def one(some: Rows) -> DrawnScores:
            given = RowInputs.of(some)
            given = given if replays else given._replace(routes=None)
            found = self.forward.outputs(trained, None, frozen, given)
            sampler = found.distribution
            if sampler is not None and some.sampler_ids is not None:
                sampler = with_rest(sampler)
            return DrawnScores(found.logprobs, sampler)

        return self._by_rows(one, rows)

    def _values(
        self, state: TrainState, trained: Params, frozen: Params, rows: Rows
    ) -> Float[Array, "B T"] | None:
        """Computes the critic's values; None without a critic."""
        if state.critic is None:
            return None
        critic = state.critic.params
        return self._by_rows(
            lambda some: self.forward.values(trained, critic, frozen, RowInputs.of(some)), rows
        )

    def _by_rows(self, one: Callable[[Rows], OfRows], rows: Rows) -> OfRows:
        """Maps a function over as many rows at a time as an update has in memory."""
        of_update = rows.tokens.shape[0] // self.updates
        return map_rows(one, rows, min(self.loss.microbatch_rows, of_update))


def _replicated(metrics: Metrics) -> Metrics:
    """Replicates advantages, so that each process of the trainer can read all of them."""
    of_tokens = metrics.get(credit.TOKEN_ADVANTAGES)
    metrics = metrics | {credit.ADVANTAGES_NAME: constrain(metrics[credit.ADVANTAGES_NAME])}
    if of_tokens is not None:
        metrics[credit.TOKEN_ADVANTAGES] = constrain(of_tokens, "batch", "length")
    return metrics
