"""Per-token estimators of KL(π ‖ π_ref) from samples of π (Schulman 2020, "Approximating KL").

With δ = log π − log π_ref at the sampled token.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def k1(logprobs: Float[Array, "B T"], ref_logprobs: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """δ: unbiased, of either sign, of high variance."""
    return logprobs - ref_logprobs


def k2(logprobs: Float[Array, "B T"], ref_logprobs: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """δ² / 2: biased, never negative; its gradient is an unbiased gradient of the KL."""
    return 0.5 * jnp.square(logprobs - ref_logprobs)


def k3(logprobs: Float[Array, "B T"], ref_logprobs: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """exp(−δ) − 1 + δ: unbiased, never negative."""
    delta = ref_logprobs - logprobs
    return jnp.expm1(delta) - delta


def absolute(
    logprobs: Float[Array, "B T"], ref_logprobs: Float[Array, "B T"]
) -> Float[Array, "B T"]:
    """|δ|: not an estimate of the KL, but a distance that grows only linearly."""
    return jnp.abs(logprobs - ref_logprobs)


def adapted_coefficient(
    coefficient: Float[Array, ""],
    kl: Float[Array, ""],
    target: float,
    horizon_steps: float,
) -> Float[Array, ""]:
    """β · (1 + clip(KL / target − 1, −0.2, 0.2) / horizon): the next step's coefficient, which
    moves the divergence towards a target (Ziegler et al. 2019, arXiv:1909.08593, section 2.2).

    Args:
      kl: the divergence of the step.
      horizon_steps: number of steps in which the coefficient may change by 20 %.
    """
    return coefficient * (1 + jnp.clip(kl / target - 1, -0.2, 0.2) / horizon_steps)
