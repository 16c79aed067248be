"""The state of a trainer."""

from __future__ import annotations

from typing import NamedTuple

import optax
from jaxtyping import Array, Float, Int

from rl_sync.learning.critic import CriticState
from rl_sync.learning.drawing_versions import DrawingVersions
from rl_sync.learning.loss_scale import LossScale
from rl_sync.types import Params


class TrainState(NamedTuple):
    """State that a trainer carries from step to step.

    Attributes:
      step: number of finished trainer steps, without SFT steps.
      params: the policy's parameters.
      opt_state: the optimizer's state for the trained parameters: all of them, or the adapters.
      ref_params: the reference model: the trained parameters from the start of RL, or from the
        last refresh of the reference, in the dtype of the computation where a forward pass casts
        them anyway. The frozen parameters are the policy's. None for no reference.
      critic: state of the critic; None if the algorithm needs no values.
      kl_coefficient: weight of the divergence from the reference model; None if it never changes.
      drawing: earlier versions that may have drawn tokens; None if they are not needed.
      loss_scale: state of the loss scaling; None if the computation is not in float16.
      teachers: parameters of the teachers, in the dtype of the computation; None without one. They
        never change, so snapshots leave them out.
    """

    step: Int[Array, ""]
    params: Params
    opt_state: optax.OptState
    ref_params: Params | None
    critic: CriticState | None = None
    kl_coefficient: Float[Array, ""] | None = None
    drawing: DrawingVersions | None = None
    loss_scale: LossScale | None = None
    teachers: tuple[Params, ...] | None = None
