"""Losses on pairs of which one completion is preferred."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float


def dpo(
    chosen_logprobs: Float[Array, " P"],
    rejected_logprobs: Float[Array, " P"],
    chosen_ref_logprobs: Float[Array, " P"],
    rejected_ref_logprobs: Float[Array, " P"],
    temperature: float,
) -> Float[Array, " P"]:
    """−log σ(β · ((log π − log π_ref)(chosen) − (log π − log π_ref)(rejected))) (DPO,
    arXiv:2305.18290, eq. 7).

    Args:
      chosen_logprobs, and the others: sums over a completion's tokens; P pairs.
      temperature: β.
    """
    chosen = chosen_logprobs - chosen_ref_logprobs
    rejected = rejected_logprobs - rejected_ref_logprobs
    return -jax.nn.log_sigmoid(temperature * (chosen - rejected))
