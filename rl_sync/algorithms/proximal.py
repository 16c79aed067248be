"""The policy that an update must stay close to, without a forward pass of its own."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float, Int


def interpolated_logprobs(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    staleness: Int[Array, "B T"],
) -> Float[Array, "B T"]:
    """(1 − α) · log π_behavior + α · log π with α = s / (s + 1), a constant: the policy of the
    step's start, s steps after the behavior policy, lies that far on the way to the one being
    trained (A-3PO, arXiv:2512.06547, section 3).

    Args:
      staleness: s, in trainer steps; 0 for tokens of the policy of the step's start.
    """
    share = staleness / (staleness + 1)
    return behavior_logprobs + share * (jax.lax.stop_gradient(logprobs) - behavior_logprobs)
