"""Weights for tokens that another, older policy drew: pieces that any loss can be multiplied with.

They compare a policy with the behavior policy by κ = π / π_behavior at the tokens drawn, and are
constants: no gradient flows through them. A token with weight 0 is rejected: it adds nothing to the
sum of the loss, but still counts in the number of tokens that divides the sum. So the other tokens
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
    """min(κ, weight_limit) a token (truncated importance sampling, Ionides 2008)."""
    ratio = jnp.exp(logprobs - behavior_logprobs)
    return jax.lax.stop_gradient(jnp.minimum(ratio, weight_limit))


def truncated_sequence_weights(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    mask: Mask,
    weight_limit: float,
    sequences: Sequences = None,
) -> OfSequence:
    """min(Π κ over a sequence, weight_limit): one weight a sequence (Ionides 2008)."""
    log_ratio = totals(logprobs - behavior_logprobs, mask, sequences)
    return jax.lax.stop_gradient(jnp.minimum(jnp.exp(log_ratio), weight_limit))


def token_mask(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    token_low: float,
    token_high: float,
) -> Bool[Array, "B T"]:
    """κ ∈ [low, high] a token; times κ itself it is IcePop (Ling team 2025, "Small Leak Can Sink a
    Great Ship").
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
    """(Π κ)^(1/|o|) ∈ [low, high]: as `sequence_rejection`, whatever the length (Liu et al. 2025,
    "When Speed Kills Stability", part 3).
    """
    log_ratio = means(logprobs - behavior_logprobs, mask, sequences)
    return (jnp.log(geometric_low) <= log_ratio) & (log_ratio <= jnp.log(geometric_high))


def second_moment_limit(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    mask: Mask,
    limit: float,
) -> Float[Array, ""]:
    """The largest (log κ)² that may stay, so that the mean of those that stay is at most `limit`
    (M2PO, arXiv:2510.01161, algorithm 1). Over all tokens of an update.
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
    """(log κ)² ≤ what the function `second_moment_limit` makes of all tokens of an update."""
    return jnp.square(logprobs - behavior_logprobs) <= second_moment_limit


def negative_sequence_mask(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    advantages: Advantages,
    mask: Mask,
    negative_drift: float,
    sequences: Sequences = None,
) -> Bool[Array, "B T"] | Bool[Array, "B 1"]:
    """Not (A < 0 and mean_t −log κ > negative_drift): a bad sequence that became unlikely is left
    alone (DeepSeek-V3.2, arXiv:2512.02556, section 3.1).
    """
    drift = means(behavior_logprobs - logprobs, mask, sequences)
    return ~((advantages < 0) & (drift > negative_drift))
