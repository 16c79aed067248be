"""The critic: what it is made of, where it starts, and what it learns.

A critic values each state by a scalar head, either on the policy's own trunk, which both then
train, or on a trunk of its own, a copy of what is trained of the policy as it was when RL began.

Letters in shapes: B rows, T positions.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from rl_sync.algorithms import aggregation
from rl_sync.algorithms.values import clipped_value_loss, is_value_clipped
from rl_sync.learning.objective import Experience, Metrics, Totals
from rl_sync.learning.opt_state import Descent
from rl_sync.learning.optimizer import OptimizerConfig
from rl_sync.models.config import ModelConfig
from rl_sync.models.heads import HEAD, blank_scalar_head
from rl_sync.models.placement import constrain_like, put
from rl_sync.models.sharding import Layout
from rl_sync.spelling import hint
from rl_sync.types import Params

MODELS = ("own", "head")


@dataclasses.dataclass(frozen=True)
class CriticConfig:
    """`config.critic`: of algorithms whose advantages are taken from values.

    Attributes:
      model: `own` for a model of its own, of the policy's shape and start; `head` for a head on the
        policy's trunk.
      learning_rate: of the RL steps; None for `optimizer.learning_rate`. The rest of the optimizer
        is as `config.optimizer` has it.
      coefficient: weight of the value loss.
      clip: how far a step may move a value; 0 for any distance.
      warm_up_steps: the trainer steps at the start of RL in which the critic alone learns.

    Raises:
      ValueError: an unknown name, or a value outside its range.
    """

    model: str
    learning_rate: float | None
    coefficient: float
    clip: float
    warm_up_steps: int

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(
                f"critic.model={self.model!r} is not one of {', '.join(MODELS)}"
                + hint(self.model, MODELS)
            )
        if self.coefficient <= 0:
            raise ValueError(f"critic.coefficient={self.coefficient} must be above 0.")
        for field in ("learning_rate", "clip", "warm_up_steps"):
            if (value := getattr(self, field)) is not None and value < 0:
                raise ValueError(f"critic.{field}={value} must not be negative.")


class CriticState(NamedTuple):
    """What a trainer carries of its critic.

    Attributes:
      params: the head, and with a model of its own what is trained of that.
      opt_state: the optimizer's, for these.
    """

    params: Params
    opt_state: Any


@dataclasses.dataclass(frozen=True)
class Critic:
    """The critic's pure functions, for one model.

    Attributes:
      config: what it is.
      model: the policy's shape.
      optimizer: the policy's.
      updates: of the run; where the learning rate's schedule ends.
      layout: where its state lies.
      offloaded: see `Descent`.
    """

    config: CriticConfig
    model: ModelConfig
    optimizer: OptimizerConfig
    updates: int
    layout: Layout
    offloaded: bool = False

    @property
    def transformation(self) -> optax.GradientTransformation:
        """Its optimizer."""
        rate = self.config.learning_rate
        own = self.optimizer
        if rate is not None:
            own = dataclasses.replace(own, learning_rate=rate)
        return own.reinforcement(self.updates)

    def descent(self, trained: Params) -> Descent:
        """Its updates.

        Args:
          trained: what is trained of the policy, or shapes, dtypes and shardings of it.
        """
        like = self.params_like(trained)
        return Descent(self.transformation, like, self.layout, self.offloaded)

    def begin(self, trained: Params) -> CriticState:
        """The critic at the start of RL: every value is 0, so advantages are returns at first.

        Args:
          trained: what is trained of the policy.
        """
        repeated = self.layout.repeated
        params = {HEAD: jax.tree.map(lambda x: put(x, repeated), blank_scalar_head(self.model))}
        if self.config.model == "own":
            params |= jax.tree.map(jnp.copy, trained)
        return CriticState(params, self.descent(trained).init(params))

    def like(self, trained: Params) -> CriticState:
        """Shapes, dtypes and shardings of the critic's states.

        Args:
          trained: those of what is trained of the policy.
        """
        return CriticState(self.params_like(trained), self.descent(trained).state_like())

    def params_like(self, trained: Params) -> Params:
        """Shapes, dtypes and shardings of its parameters; see `like`."""
        head = jax.eval_shape(lambda: blank_scalar_head(self.model))
        params = {HEAD: jax.tree.map(lambda x: self.layout.like(x, ()), head)}
        if self.config.model == "own":
            params |= trained
        return params

    def held(self, params: Params, trained: Params) -> Params:
        """Its parameters, or what is differentiated by them, kept in their place.

        Args:
          trained: see `like`.
        """
        return constrain_like(params, self.params_like(trained))

    def learn(
        self, state: CriticState, gradient: Params, trained: Params, learns: Bool[Array, ""]
    ) -> CriticState:
        """One update.

        Args:
          trained: see `held`.
          learns: see `Descent.update`.
        """
        return CriticState(*self.descent(trained).update(*state, gradient, learns))


def value_loss(
    config: CriticConfig, values: Float[Array, "B T"], experience: Experience, totals: Totals
) -> tuple[Float[Array, ""], Metrics]:
    """The critic's share of the loss of some rows of an update: a mean over the update's tokens.

    Args:
      values: before each token.
      experience: with the values at the step's start, and returns.
      totals: of the whole update.
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
