"""Importance weights for tokens that another, older policy sampled.

They multiply a loss as constants: no gradient flows through them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rl_sync.algorithms.masking import Mask


def truncated_token_weights(
    logprobs: Float[Array, "B T"], behavior_logprobs: Float[Array, "B T"], limit: float
) -> Float[Array, "B T"]:
    """min(π / π_behavior, limit) a token (truncated importance sampling, Ionides 2008)."""
    ratio = jnp.exp(logprobs - behavior_logprobs)
    return jax.lax.stop_gradient(jnp.minimum(ratio, limit))


def truncated_sequence_weights(
    logprobs: Float[Array, "B T"],
    behavior_logprobs: Float[Array, "B T"],
    mask: Mask,
    limit: float,
) -> Float[Array, "B 1"]:
    """min(Π over a row's masked tokens of π / π_behavior, limit): one weight a row."""
    log_ratio = jnp.where(mask, logprobs - behavior_logprobs, 0.0).sum(axis=-1, keepdims=True)
    return jax.lax.stop_gradient(jnp.minimum(jnp.exp(log_ratio), limit))
