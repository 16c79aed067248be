"""Per-token losses, which `aggregation` reduces once at the end.

`old_logprobs` are constants of the policy that the update starts from or that sampled the tokens.
`advantages` have one value per token or per row. ρ = exp(logprobs − old_logprobs).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Advantages = Float[Array, "B T"] | Float[Array, "B 1"]


def sft(logprobs: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """−log π(token): the negative log-likelihood of a demonstration."""
    return -logprobs


def demonstration_weights(logprobs: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """φ = p(1 − p), a constant: tokens of demonstrations that are already certain, or hopeless,
    have the least weight (CHORD-φ, arXiv:2508.11408, section 3).
    """
    probs = jnp.exp(jax.lax.stop_gradient(logprobs))
    return probs * (1 - probs)


def mixed(
    policy_loss: Float[Array, ...], demonstration_loss: Float[Array, ...], share: float
) -> Float[Array, ...]:
    """(1 − μ) · L_RL + μ · L_SFT, or the same mixture of their gradients (CHORD, arXiv:2508.11408,
    section 3).

    Args:
      policy_loss, demonstration_loss: the losses, each reduced over its own tokens.
      share: μ.
    """
    return (1 - share) * policy_loss + share * demonstration_loss


def reinforce(logprobs: Float[Array, "B T"], advantages: Advantages) -> Float[Array, "B T"]:
    """−A · log π (REINFORCE, Williams 1992)."""
    return -advantages * logprobs


def ppo_clip(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: Advantages,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> Float[Array, "B T"]:
    """−min(ρA, clip(ρ, 1 − ε_low, 1 + ε_high)A) (PPO, arXiv:1707.06347, eq. 7; asymmetric bounds
    as in DAPO, arXiv:2503.14476, eq. 10). If the old policy is the policy at the step's start, and
    `corrections` weight from the behavior policy to it, this is decoupled PPO (arXiv:2110.00641,
    section 3).

    Args:
      dual_clip: c > 1; where A < 0 the loss is at most −cA (arXiv:1912.09729, eq. 5), which
        bounds the loss of a token that became much more likely. 0 for no bound.
    """
    ratio = jnp.exp(logprobs - old_logprobs)
    clipped = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
    loss = -jnp.minimum(ratio * advantages, clipped * advantages)
    if not dual_clip:
        return loss
    return jnp.where(advantages < 0, jnp.minimum(loss, -dual_clip * advantages), loss)


def is_clipped(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: Advantages,
    clip_low: float,
    clip_high: float,
) -> Bool[Array, "B T"]:
    """Marks tokens where `ppo_clip` takes its clipped branch, which has no gradient."""
    ratio = jnp.exp(logprobs - old_logprobs)
    above = (advantages > 0) & (ratio > 1 + clip_high)
    below = (advantages < 0) & (ratio < 1 - clip_low)
    return above | below


def cispo(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: Advantages,
    clip_low: float,
    clip_high: float,
) -> Float[Array, "B T"]:
    """−sg(clip(ρ, 1 − ε_low, 1 + ε_high)) · A · log π: the weight is bounded, and every token keeps
    its gradient (CISPO, MiniMax-M1, arXiv:2506.13585, eq. 4).
    """
    weight = jnp.clip(jnp.exp(logprobs - old_logprobs), 1 - clip_low, 1 + clip_high)
    return -jax.lax.stop_gradient(weight) * advantages * logprobs


def is_outside(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    clip_low: float,
    clip_high: float,
) -> Bool[Array, "B T"]:
    """Marks tokens where `cispo` bounds the weight."""
    ratio = jnp.exp(logprobs - old_logprobs)
    return (ratio > 1 + clip_high) | (ratio < 1 - clip_low)


def sapo(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: Advantages,
    positive_temperature: float,
    negative_temperature: float,
) -> Float[Array, "B T"]:
    """−(4 / τ) · σ(τ(ρ − 1)) · A: a gate that closes softly as the ratio leaves 1 (SAPO,
    arXiv:2511.20347, section 3).

    Args:
      positive_temperature, negative_temperature: τ where A > 0, and elsewhere.
    """
    ratio = jnp.exp(logprobs - old_logprobs)
    temperature = jnp.where(advantages > 0, positive_temperature, negative_temperature)
    gate = jax.nn.sigmoid(temperature * (ratio - 1)) * 4 / temperature
    return -gate * advantages


def dppo(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: Advantages,
    clip_low: float,
    clip_high: float,
    weight_limit: float,
) -> Float[Array, "B T"]:
    """−M · sg(min(ρ, c)) · A · log π, where M is 0 for tokens that `has_left` marks (DPPO with the
    binary total variation, arXiv:2602.04879, section 4).

    Args:
      clip_low, clip_high: δ, the largest decrease and increase of a token's probability; beyond
        it the token is not pushed further.
      weight_limit: c.
    """
    ratio = jnp.minimum(jnp.exp(logprobs - old_logprobs), weight_limit)
    left = has_left(logprobs, old_logprobs, advantages, clip_low, clip_high)
    return -jax.lax.stop_gradient(jnp.where(left, 0.0, ratio)) * advantages * logprobs


def has_left(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: Advantages,
    clip_low: float,
    clip_high: float,
) -> Bool[Array, "B T"]:
    """Marks tokens where π − π_old is beyond its bound on the side that the advantage pushes to.
    With two outcomes, the token and all others, |π − π_old| is the total variation.
    """
    change = jnp.exp(logprobs) - jnp.exp(old_logprobs)
    return jnp.where(advantages > 0, change > clip_high, change < -clip_low)
