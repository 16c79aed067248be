"""Distillation on policy: divergences of a policy from its teacher, at tokens of the policy.

With π the policy and q its teacher, both after the same earlier tokens. The teacher is never
differentiated.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_LEAST_TAIL = 1e-7  # About the rounding of a sum of probabilities in float32.


def sampled_advantages(
    behavior_logprobs: Float[Array, "B T"], teacher_logprobs: Float[Array, "B T"]
) -> Float[Array, "B T"]:
    """log q(y) − log π(y) at each drawn token y, whose mean under π is −KL(π ‖ q). As the advantage
    of that token alone it gives the gradient of the divergence (Thinking Machines 2025, "On-policy
    distillation"; MiniLLM, arXiv:2306.08543, eq. 3).
    """
    return teacher_logprobs - behavior_logprobs


def best_divergence(
    logprobs: Float[Array, "B T K"], teacher_logprobs: Float[Array, "B T K"]
) -> Float[Array, "B T"]:
    """Σ_H π log(π / q) + π(tail) log(π(tail) / q(tail)), for the tokens H that are given, and all
    others as one outcome. It is at most KL(π ‖ q), and equal to it if H is the vocabulary or if
    π / q is the same at all other tokens. Its gradient flows through π alone.

    Args:
      logprobs, teacher_logprobs: log-probabilities of the K tokens of H, under the policy and under
        the teacher. A token with teacher probability 0 must have policy probability 0.
    """
    others = jax.lax.stop_gradient(teacher_logprobs)
    probs = jnp.exp(logprobs)
    head = (probs * (logprobs - others)).sum(axis=-1)
    rest, other_rest = _tail(probs), _tail(jnp.exp(others))
    return head + rest * (jnp.log(rest) - jnp.log(other_rest))


def _tail(probs: Float[Array, "B T K"]) -> Float[Array, "B T"]:
    return jnp.clip(1 - probs.sum(axis=-1), _LEAST_TAIL, 1.0)
