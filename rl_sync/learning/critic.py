"""The critic: its parameters, its start and its loss.

A critic estimates the value of each state by a scalar head. The head is on the policy's trunk,
which policy and critic then train together, or on a trunk of its own, which starts as a copy of the
policy when RL begins.

Letters in shapes: B rows, T positions.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from rl_sync.algorithms import aggregation
from rl_sync.algorithms.values import clipped_value_loss, is_value_clipped
from rl_sync.learning.learning_settings import CriticConfig, OptimizerConfig
from rl_sync.learning.objective import BatchExperience, Metrics, Totals
from rl_sync.learning.opt_state import ShardedOptimizer
from rl_sync.learning.optimizer import ClippedOptimizer, rl_optimizer
from rl_sync.models.config import ModelConfig
from rl_sync.models.heads import HEAD, blank_scalar_head
from rl_sync.models.placement import constrain_like, put
from rl_sync.models.sharding import Layout
from rl_sync.types import Params


class CriticState(NamedTuple):
    """The critic's part of the trainer's state.

    Attributes:
      params: the head, and the trained parameters of the critic's own model if it has one.
      opt_state: the optimizer's state for these parameters.
    """

    params: Params
    opt_state: optax.OptState


@dataclasses.dataclass(frozen=True)
class Critic:
    """The critic's pure functions, for one model.

    Attributes:
      config: the critic's settings.
      model: the policy's model config.
      optimizer: the settings of the policy's optimizer.
      updates: number of updates of the run, after which the learning rate's schedule ends.
      layout: sharding of the critic's state.
      offloaded: see `ShardedOptimizer`.
    """

    config: CriticConfig
    model: ModelConfig
    optimizer: OptimizerConfig
    updates: int
    layout: Layout
    offloaded: bool = False

    @property
    def transformation(self) -> ClippedOptimizer:
        """The critic's optimizer."""
        rate = self.config.learning_rate
        own = self.optimizer
        if rate is not None:
            own = dataclasses.replace(own, learning_rate=rate)
        return rl_optimizer(own, self.updates)

    def gradients(self, trained: Params) -> ShardedOptimizer:
        """Makes the critic's sharded optimizer.

        Args:
          trained: the policy's trained parameters, or their shapes, dtypes and shardings.
        """
        abstract = self.abstract_params(trained)
        return ShardedOptimizer(self.transformation, abstract, self.layout, self.offloaded)

    def begin(self, trained: Params) -> CriticState:
        """Makes the critic at the start of RL. Every value is 0, so advantages start as returns.

        Args:
          trained: the policy's trained parameters.
        """
        repeated = self.layout.repeated
        params = {HEAD: jax.tree.map(lambda x: put(x, repeated), blank_scalar_head(self.model))}
        if self.config.model == "own":
            params |= jax.tree.map(jnp.copy, trained)
        return CriticState(params, self.gradients(trained).init(params))

    def abstract(self, trained: Params) -> CriticState:
        """Returns shapes, dtypes and shardings of the critic's states.

        Args:
          trained: shapes, dtypes and shardings of the policy's trained parameters.
        """
        return CriticState(self.abstract_params(trained), self.gradients(trained).abstract_state())

    def abstract_params(self, trained: Params) -> Params:
        """Returns shapes, dtypes and shardings of the critic's parameters; see `abstract`."""
        head = jax.eval_shape(lambda: blank_scalar_head(self.model))
        params = {HEAD: jax.tree.map(lambda x: self.layout.abstract(x, ()), head)}
        if self.config.model == "own":
            params |= trained
        return params

    def held(self, params: Params, trained: Params) -> Params:
        """Constrains the critic's parameters, or their gradients, to their shardings.

        Args:
          trained: see `abstract`.
        """
        return constrain_like(params, self.abstract_params(trained))

    def learn(
        self, state: CriticState, gradient: Params, trained: Params, learns: Bool[Array, ""]
    ) -> CriticState:
        """Computes one update.

        Args:
          trained: see `abstract`.
          learns: see `ShardedOptimizer.update`.
        """
        return CriticState(*self.gradients(trained).update(*state, gradient, learns))


def value_loss(
    config: CriticConfig, values: Float[Array, "B T"], experience: BatchExperience, totals: Totals
) -> tuple[Float[Array, ""], Metrics]:
    """Computes the critic's loss of some rows of an update: a mean over the update's tokens.

    Args:
      values: value before each token.
      experience: the rows, with returns and with the values at the step's start.
      totals: figures of the whole update.
    """
    old_values, returns = experience.values, experience.estimate.returns
    mask = experience.rows.completion_mask
    assert old_values is not None
    assert returns is not None
    clip = config.clip or jnp.inf

    def mean(of_tokens: Float[Array, "B T"]) -> Float[Array, ""]:
        of_tokens = of_tokens * experience.weights
        return aggregation.token_mean(of_tokens, mask, totals.token_count)

    loss = mean(clipped_value_loss(values, old_values, returns, clip))
    clipped = is_value_clipped(jax.lax.stop_gradient(values), old_values, returns, clip)
    return config.coefficient * loss, {
        "value_loss": loss,
        "value_clip_fraction": mean(clipped.astype(jnp.float32)),
    }
