"""Losses a token, to be reduced once, at the end, by `masking`."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def sft(logprobs: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """−log π(token): the negative log-likelihood of a demonstration."""
    return -logprobs


def ppo_clip(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: Float[Array, "B T"] | Float[Array, "B 1"],
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Float[Array, "B T"]:
    """−min(ρA, clip(ρ, 1 − ε_low, 1 + ε_high)A), ρ = exp(logprobs − old_logprobs) (PPO,
    arXiv:1707.06347, eq. 7; asymmetric bounds as in DAPO, arXiv:2503.14476, eq. 10).

    Args:
      advantages: a token, or one a row.
      dual_clip: c > 1; where A < 0 the loss is at most −cA (arXiv:1912.09729, eq. 5), which
        bounds what a token costs that became much likelier than it was. None for no bound.
    """
    ratio = jnp.exp(logprobs - old_logprobs)
    clipped = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
    loss = -jnp.minimum(ratio * advantages, clipped * advantages)
    if dual_clip is None:
        return loss
    return jnp.where(advantages < 0, jnp.minimum(loss, -dual_clip * advantages), loss)


def is_clipped(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: Float[Array, "B T"] | Float[Array, "B 1"],
    clip_low: float,
    clip_high: float,
) -> Float[Array, "B T"]:
    """1 where `ppo_clip` takes its clipped branch, so that there is no gradient; 0 elsewhere."""
    ratio = jnp.exp(logprobs - old_logprobs)
    above = (advantages > 0) & (ratio > 1 + clip_high)
    below = (advantages < 0) & (ratio < 1 - clip_low)
    return (above | below).astype(jnp.float32)
