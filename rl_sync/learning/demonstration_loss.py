"""Mixes the gradient of demonstrations into the gradient of rollouts, during RL.

Letters in shapes: D rows of demonstrations, T positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
from jaxtyping import Array, Float

from rl_sync.algorithms import aggregation, losses
from rl_sync.learning.microbatches import gradient
from rl_sync.learning.objective import Metrics
from rl_sync.types import Demonstrations, Params

Logprobs = Callable[[Params, Demonstrations], Float[Array, "D T"]]


def mix_in(
    gradients: Params,
    logprobs: Logprobs,
    trained: Params,
    demonstrations: Demonstrations,
    share: float,
    microbatch_rows: int,
    scale: Float[Array, ""] | None = None,
) -> tuple[Params, Metrics]:
    """Mixes the gradient of the loss of demonstrations into the gradient of another loss.

    The loss of demonstrations is the mean of −log π over their tokens.

    Args:
      gradients: gradient of the loss of rollouts with respect to the trained parameters.
      logprobs: function from trained parameters and demonstrations to log-probabilities.
      share: μ of `losses.mixed`.
      microbatch_rows, scale: see `gradient`.
    """
    count = demonstrations.mask.sum()

    def loss_of(
        trained: Params, rows: Demonstrations
    ) -> tuple[Float[Array, ""], tuple[Metrics, None]]:
        loss = aggregation.token_mean(losses.sft(logprobs(trained, rows)), rows.mask, count)
        return loss, ({"demonstration_loss": loss}, None)

    towards, (metrics, _) = gradient(loss_of, trained, demonstrations, microbatch_rows, scale)
    return jax.tree.map(functools.partial(losses.mixed, share=share), gradients, towards), metrics
