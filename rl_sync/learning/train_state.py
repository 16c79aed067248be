"""The state of a trainer."""

from __future__ import annotations

from typing import NamedTuple

import optax
from jaxtyping import Array, Float, Int

from rl_sync.learning.critic import CriticState
from rl_sync.types import Params


class TrainState(NamedTuple):
    """The state that a trainer carries from step to step.

    Attributes:
      step: finished trainer steps; SFT steps do not count.
      params: the policy's parameters.
      opt_state: the optimizer's state for the trained parameters: all of them, or the adapters.
      ref_params: the reference model: the trained parameters as they were when RL began, or when
        the reference was last refreshed. The frozen ones are the policy's. None for no reference.
      critic: None where the algorithm needs no values.
      kl_coefficient: the weight of the divergence from the reference model; None where it never
        changes.
    """

    step: Int[Array, ""]
    params: Params
    opt_state: optax.OptState
    ref_params: Params | None
    critic: CriticState | None = None
    kl_coefficient: Float[Array, ""] | None = None
