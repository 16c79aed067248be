"""Weights for tokens that an older policy sampled: factors for any loss.

They compare a policy with the behavior policy by κ = π / π_behavior at the sampled tokens. They are
constants: no gradient flows through them. A token with weight 0 is rejected: it adds nothing to the
sum of the loss, but still counts in the number of tokens that divides the sum, so the other tokens
keep their weight. For `sequences` see `rl_sync.algorithms.sequences`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rl_sync.algorithms.losses import Advantages
from rl_sync.algorithms.masking import Mask
from rl_sync.algorithms.sequences import OfSequence, Sequences, means, totals


def truncated_token_weights(
    logprobs: Float[Array, "B T"], behavior_logprobs: Float[Array, "B T"], weight_limit: float
) -> Float[Array, "B T"]:
    """min(κ, weight_limit) per token (truncated importance sampling, Ionides 2008)."""
    ratio = jnp.exp(logprobs - behavior_logprobs)
    return jax.lax.stop_gradient(jnp.minimum(ratio, weight_limit))


def truncated_sequence_weights(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    mask: Mask,
    weight_limit: float,
    sequences: Sequences = None,
) -> OfSequence:
    """min(Π κ over a sequence, weight_limit): one weight per sequence (Ionides 2008)."""
    log_ratio = totals(logprobs - behavior_logprobs, mask, sequences)
    return jax.lax.stop_gradient(jnp.minimum(jnp.exp(log_ratio), weight_limit))


def token_mask(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    token_low: float,
    token_high: float,
) -> Bool[Array, "B T"]:
    """κ ∈ [low, high] per token; multiplied by κ it is IcePop (Ling team 2025, "Small Leak Can Sink
    a Great Ship").
    """
    ratio = jnp.exp(logprobs - behavior_logprobs)
    return (token_low <= ratio) & (ratio <= token_high)


def sequence_rejection(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    mask: Mask,
    sequence_low: float,
    sequence_high: float,
    sequences: Sequences = None,
) -> Bool[Array, "B T"] | Bool[Array, "B 1"]:
    """Π κ over a sequence ∈ [low, high] (masked importance sampling, Liu et al. 2025, "When Speed
    Kills Stability").
    """
    log_ratio = totals(logprobs - behavior_logprobs, mask, sequences)
    return (jnp.log(sequence_low) <= log_ratio) & (log_ratio <= jnp.log(sequence_high))


def geometric_rejection(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    mask: Mask,
    geometric_low: float,
    geometric_high: float,
    sequences: Sequences = None,
) -> Bool[Array, "B T"] | Bool[Array, "B 1"]:
    """(Π κ)^(1/|o|) ∈ [low, high]: `sequence_rejection`, independent of the length (Liu et al.
    2025, "When Speed Kills Stability", part 3).
    """
    log_ratio = means(logprobs - behavior_logprobs, mask, sequences)
    return (jnp.log(geometric_low) <= log_ratio) & (log_ratio <= jnp.log(geometric_high))


def second_moment_limit(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    mask: Mask,
    limit: float,
) -> Float[Array, ""]:
    """The largest (log κ)² to keep, so that the mean over the kept tokens of an update is at most
    `limit` (M2PO, arXiv:2510.01161, algorithm 1).
    """
    squares = jnp.square(logprobs - behavior_logprobs)
    ordered = jnp.sort(jnp.where(mask, squares, jnp.inf), axis=None)
    running_mean = jnp.cumsum(ordered) / jnp.arange(1, ordered.size + 1)
    return jnp.max(jnp.where(running_mean <= limit, ordered, 0.0))


def second_moment_mask(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    second_moment_limit: Float[Array, ""],
) -> Bool[Array, "B T"]:
    """(log κ)² ≤ the limit that the function `second_moment_limit` finds for a whole update."""
    return jnp.square(logprobs - behavior_logprobs) <= second_moment_limit


def negative_sequence_mask(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    advantages: Advantages,
    mask: Mask,
    negative_drift: float,
    sequences: Sequences = None,
) -> Bool[Array, "B T"] | Bool[Array, "B 1"]:
    """False where A < 0 and mean_t −log κ > negative_drift: excludes bad sequences that became
    unlikely (DeepSeek-V3.2, arXiv:2512.02556, section 3.1).
    """
    drift = means(behavior_logprobs - logprobs, mask, sequences)
    return ~((advantages < 0) & (drift > negative_drift))
