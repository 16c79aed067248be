"""What a trainer carries from step to step."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Array, Float, Int

from rl_sync.learning.critic import CriticState
from rl_sync.types import Params


class TrainState(NamedTuple):
    """All that a trainer carries from step to step.

    Attributes:
      step: finished trainer steps; supervised ones do not count.
      params: the policy's.
      opt_state: the optimizer's, for what is trained: everything, or the adapters alone.
      ref_params: what is trained, as it was when RL began or the reference was last refreshed: with
        what is not, the reference model. None without one.
      critic: None where the algorithm needs no values.
      kl_coefficient: the weight of the divergence from the reference model; None where it does not
        change.
    """

    step: Int[Array, ""]
    params: Params
    opt_state: Any
    ref_params: Params | None
    critic: CriticState | None = None
    kl_coefficient: Float[Array, ""] | None = None
