"""What is computed of a batch before a step's first update.

Letters in shapes: B rows, T positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.learning import credit, objective
from rl_sync.learning.forward import Forward
from rl_sync.learning.microbatches import map_rows
from rl_sync.learning.objective import Experience, Metrics
from rl_sync.learning.train_state import TrainState
from rl_sync.types import Packing, Params, TrainBatch


class Rows(NamedTuple):
    """What the loss reads of a batch, or of some rows of it."""

    tokens: Int[Array, "B T"]
    packing: Packing | None
    experience: Experience


@dataclasses.dataclass(frozen=True)
class Preparation:
    """From a batch to what the loss reads of it.

    Attributes:
      algorithm, group_size, max_completion_tokens, end_ids, microbatch_rows: see `Trainer`.
      forward: the model's passes.
      updates: of a step.
    """

    algorithm: Algorithm
    forward: Forward
    group_size: int
    max_completion_tokens: int
    end_ids: tuple[int, ...]
    updates: int
    microbatch_rows: int

    def rows(
        self, state: TrainState, trained: Params, frozen: Params, batch: TrainBatch
    ) -> tuple[Rows, Metrics]:
        """What the loss reads of a batch, row by row, and what describes all of it.

        Args:
          state: before the step.
          trained, frozen: the policy's parameters.
        """
        mask = batch.completion_mask
        staleness = jnp.where(mask, state.step - batch.policy_versions, 0)
        sequences = None if batch.packing is None else batch.packing.trajectories

        def of_rows(one: Callable[..., Array]) -> Float[Array, "B T"]:
            both = (batch.tokens, batch.packing)
            return map_rows(lambda rows: one(*rows), both, self.microbatch_rows)

        def logprobs_of(trained: Params) -> Float[Array, "B T"]:
            return of_rows(lambda *rows: self.forward.logprobs(trained, frozen, *rows))

        ref_logprobs = proximal_logprobs = values = None
        if state.ref_params is not None:
            ref_logprobs = logprobs_of(state.ref_params)
        if objective.needs_proximal(self.algorithm, self.updates):
            proximal_logprobs = logprobs_of(trained)
        if state.critic is not None:
            critic = state.critic.params
            values = of_rows(lambda *rows: self.forward.values(trained, critic, frozen, *rows))
        trajectories = credit.Trajectories(
            batch.rewards,
            mask,
            sequences,
            credit.is_truncated(
                batch.tokens,
                mask,
                sequences,
                batch.rewards.size,
                self.max_completion_tokens,
                self.end_ids,
            ),
            batch.behavior_logprobs,
            ref_logprobs,
            batch.baselines,
            values=values,
            kl_coefficient=state.kl_coefficient,
        )
        given, metrics = credit.give(
            self.algorithm, trajectories, self.group_size, self.max_completion_tokens
        )
        experience = Experience(
            mask,
            batch.behavior_logprobs,
            proximal_logprobs,
            ref_logprobs,
            given.advantages,
            given.weights,
            staleness,
            sequences,
            values=values,
            returns=given.returns,
        )
        if ref_logprobs is not None:
            weight = state.kl_coefficient
            metrics["kl_coefficient"] = jnp.float32(
                self.algorithm.kl_coefficient if weight is None else weight
            )
        metrics["staleness_mean"] = staleness.sum() / jnp.maximum(mask.sum(), 1)
        metrics["staleness_max"] = staleness.max().astype(jnp.float32)
        return Rows(batch.tokens, batch.packing, experience), metrics
