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
from rl_sync.setting import check, setting
from rl_sync.types import Params

MODELS = ("own", "head")


@dataclasses.dataclass(frozen=True)
class CriticConfig:
    """`config.critic`: of algorithms whose advantages are taken from values.

    Raises:
      ValueError: an unknown name, or a value outside its range.
    """

    model: str = setting(
        "own",
        "Trunk of the critic: `own` for a model of its own, of the policy's shape and start, `head`"
        " for a head on the policy's trunk.",
        choices=MODELS,
    )
    learning_rate: float | None = setting(
        None,
        "Learning rate of the critic in RL; the rest of its optimizer is the policy's.",
        least=0,
        implied="optimizer.learning_rate",
    )
    coefficient: float = setting(0.5, "Weight of the value loss.", above=0)
    clip: float = setting(
        0.2, "The farthest that a trainer step may move a value; 0 for any distance.", least=0
    )
    warm_up_steps: int = setting(
        0, "Trainer steps at the start of RL in which the critic alone learns.", least=0
    )

    def __post_init__(self) -> None:
        check(self, "critic")


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
      layout: where its state lies; None for one device.
      offloaded: see `Descent`.
    """

    config: CriticConfig
    model: ModelConfig
    optimizer: OptimizerConfig
    updates: int
    layout: Layout | None
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
          trained: what is trained of the policy, or shapes; of no meaning without a layout.
        """
        like = None if self.layout is None else self.params_like(trained)
        return Descent(self.transformation, like, self.layout, self.offloaded)

    def begin(self, trained: Params) -> CriticState:
        """The critic at the start of RL: every value is 0, so advantages are returns at first.

        Args:
          trained: what is trained of the policy.
        """
        head = blank_scalar_head(self.model)
        if self.layout is not None:
            repeated = self.layout.repeated
            head = jax.tree.map(lambda x: put(x, repeated), head)
        params = {HEAD: head}
        if self.config.model == "own":
            params |= jax.tree.map(jnp.copy, trained)
        return CriticState(params, self.descent(trained).init(params))

    def like(self, trained: Params) -> CriticState:
        """Shapes, dtypes and shardings of its states, from those of what is trained of the policy.

        Only with a layout.
        """
        return CriticState(self.params_like(trained), self.descent(trained).state_like())

    def params_like(self, trained: Params) -> Params:
        """Shapes, dtypes and shardings of its parameters; see `like`."""
        assert self.layout is not None
        layout = self.layout
        head = jax.eval_shape(lambda: blank_scalar_head(self.model))
        params = {HEAD: jax.tree.map(lambda x: layout.like(x, ()), head)}
        if self.config.model == "own":
            params |= trained
        return params

    def held(self, params: Params, trained: Params) -> Params:
        """Its parameters, or what is differentiated by them, kept in their place.

        Args:
          trained: see `like`; of no meaning without a layout.
        """
        if self.layout is None:
            return params
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
    old_values, returns, mask = experience.values, experience.returns, experience.mask
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
