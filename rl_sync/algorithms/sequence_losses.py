"""Policy losses whose ratio belongs to a whole sequence; they still have one value per token.

Arguments are as in `losses`; `mask` marks the tokens of a sequence, and `sequences` is as in
`rl_sync.algorithms.sequences`.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rl_sync.algorithms.losses import Advantages, is_clipped, ppo_clip
from rl_sync.algorithms.masking import Mask
from rl_sync.algorithms.sequences import OfSequence, Sequences, lengths, means, totals

GREATEST_LOG_RATIO = 10.0
"""Limit of the logarithm of a sequence's ratio, so that its exponential stays finite."""


def gspo_logprobs(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    mask: Mask,
    sequences: Sequences = None,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """(log s, 0), whose ratio is GSPO's: log s = sg(mean_t log ρ_t) + log π − sg(log π). Its value
    belongs to the sequence, its gradient to the token (GSPO-token, arXiv:2507.18071, eq. 14).
    """
    mean = means(logprobs - old_logprobs, mask, sequences)
    own = logprobs - jax.lax.stop_gradient(logprobs)
    log_ratio = jnp.minimum(own + jax.lax.stop_gradient(mean), GREATEST_LOG_RATIO)
    return log_ratio, jnp.zeros_like(log_ratio)


def gspo(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: Advantages,
    mask: Mask,
    clip_low: float,
    clip_high: float,
    sequences: Sequences = None,
) -> Float[Array, "B T"]:
    """−min(sA, clip(s, 1 − ε_low, 1 + ε_high)A), s = (Π ρ_t)^(1/|o|) (GSPO, arXiv:2507.18071,
    eq. 5 and 13). To be reduced by `sequence_mean`.
    """
    both = gspo_logprobs(logprobs, old_logprobs, mask, sequences)
    return ppo_clip(*both, advantages, clip_low=clip_low, clip_high=clip_high)


def is_gspo_clipped(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: Advantages,
    mask: Mask,
    clip_low: float,
    clip_high: float,
    sequences: Sequences = None,
) -> Bool[Array, "B T"]:
    """Marks tokens where `gspo` takes its clipped branch, which has no gradient."""
    both = gspo_logprobs(logprobs, old_logprobs, mask, sequences)
    return is_clipped(*both, advantages, clip_low=clip_low, clip_high=clip_high)


def gmpo(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: OfSequence,
    mask: Mask,
    clip_low: float,
    clip_high: float,
    sequences: Sequences = None,
) -> OfSequence:
    """−A · (Π_t ρ'_t)^(1/|o|), where ρ' is the ratio, clipped to (e^−ε_low, e^ε_high) on the side
    that the advantage pushes to (GMPO, arXiv:2507.20673, section 3). To be reduced by
    `sequence_mean`.

    Args:
      advantages: one per sequence.
      clip_low, clip_high: ε, bounds of the logarithm of the ratio.
    """
    log_ratio = logprobs - old_logprobs
    side = jnp.sign(advantages)
    clipped = jnp.clip(log_ratio, -clip_low, clip_high)
    bounded = side * jnp.minimum(side * log_ratio, side * clipped)
    return -advantages * jnp.exp(means(bounded, mask, sequences))


def is_gmpo_clipped(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: OfSequence,
    clip_low: float,
    clip_high: float,
) -> Bool[Array, "B T"]:
    """Marks tokens whose ratio `gmpo` clips; the bounds apply to its logarithm."""
    low, high = -math.expm1(-clip_low), math.expm1(clip_high)
    return is_clipped(logprobs, old_logprobs, advantages, clip_low=low, clip_high=high)


def topr(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: OfSequence,
    mask: Mask,
    sequences: Sequences = None,
) -> Float[Array, "B T"]:
    """−A · log π where A > 0, −sg(min(Π ρ_t, 1)) · A · log π elsewhere: good sequences are learned
    even if they are unlikely, bad ones are ignored once they are unlikely (TOPR, arXiv:2503.14286,
    section 3).

    Args:
      advantages: one per sequence.
      old_logprobs: logprobs of the policy that sampled the sequences.
    """
    log_ratio = totals(logprobs - old_logprobs, mask, sequences)
    tapered = jnp.exp(jnp.minimum(jax.lax.stop_gradient(log_ratio), 0.0))
    return -jnp.where(advantages > 0, 1.0, tapered) * advantages * logprobs


def opmd(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    advantages: Advantages,
    mask: Mask,
    mirror_temperature: float,
    sequences: Sequences = None,
) -> Float[Array, "B T"]:
    """−A · log π + (τ / 2) · (Σ_t log ρ_t)² / |o|: summed over a sequence, its gradient is that of
    online mirror descent (Kimi k1.5, arXiv:2501.12599, eq. 3). To be reduced by
    `sequence_sum_mean`.

    Args:
      advantages: rewards minus their group's mean.
      mirror_temperature: τ, the penalty on moves away from the old policy.
    """
    log_ratio = totals(logprobs - old_logprobs, mask, sequences)
    cost = 0.5 * mirror_temperature * jnp.square(log_ratio) / lengths(mask, sequences)
    return cost - advantages * logprobs
