"""Proximal policies, which an update must stay close to: the denominators of ρ."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float, Int


def behavior(behavior_logprobs: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """log π_behavior, of the policy that sampled the tokens."""
    return behavior_logprobs


def start(
    logprobs: Float[Array, "B T"], proximal_logprobs: Float[Array, "B T"] | None
) -> Float[Array, "B T"]:
    """log π of the policy at the step's start.

    Args:
      proximal_logprobs: the result of an extra forward pass; None if the current logprobs are the
        same.
    """
    return logprobs if proximal_logprobs is None else proximal_logprobs


def interpolated(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    staleness: Int[Array, "B T"],
) -> Float[Array, "B T"]:
    """(1 − α) · log π_behavior + α · log π with α = s / (s + 1), a constant: it
    interpolates from the behavior policy, s steps before the step's start, to the trained policy
    (A-3PO, arXiv:2512.06547, section 3).

    Args:
      staleness: s, in trainer steps; 0 for tokens sampled by the policy at the step's start.
    """
    share = staleness / (staleness + 1)
    return behavior_logprobs + share * (jax.lax.stop_gradient(logprobs) - behavior_logprobs)
