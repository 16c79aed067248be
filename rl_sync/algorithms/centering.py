"""Score centering: removes the drift of a policy that another distribution samples for.

Where the sampler q is not the policy p, the score has an expectation, E_q[w ∇ log p] ≠ 0, which
moves the policy whatever the rewards are. Its product with the advantage is subtracted from the
gradient of each token (arXiv:2609.20807). A token's gradient is c(v) · ∇ log p(v), where the
coefficient c is that of the loss and its corrections, such as −A for `reinforce` and −A · min(κ, w)
with a truncation. So the drift is Σ_v q(v) c(v) ∇ log p(v).

Of a sampler whose k best tokens H are known, the other tokens are taken to be ρ · p, with
ρ = (1 − Σ_H q) / (1 − Σ_H p). As Σ_v p(v) ∇ log p(v) = 0, their drift is that of −ρ c p over H.

Letters in shapes: B rows, T positions, K tokens of the sampler that are known: the k best, or the
whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rl_sync.token_records import NEVER

LEAST_TAIL = 1e-6
"""Least probability of the tokens outside H, whose sum is rounded."""
_MOST_LOG_RATIO = 60.0  # Keeps q · c finite, which has a limit where q goes to 0.


class Outcomes(NamedTuple):
    """Log-probabilities of the outcomes of a draw, by several distributions.

    Where the sampler's tokens are its k best, the last outcome is any other token.

    Attributes:
      policy: the policy that is trained; constants.
      sampler: the distribution that the token was drawn from.
      proximal: the policy at the step's start; None if it is not needed.
    """

    policy: Float[Array, "B T outcomes"]
    sampler: Float[Array, "B T outcomes"]
    proximal: Float[Array, "B T outcomes"] | None


Losses = Callable[[Array, Array, Array | None], Array]
"""Computes the losses of tokens from log-probabilities by policy, sampler, and proximal policy;
each is [B, T]. A token's loss depends on its own log-probabilities alone."""


def outcomes(
    known: Float[Array, "B T K"],
    sampler: Float[Array, "B T outcomes"],
    proximal: Float[Array, "B T outcomes"] | None,
) -> Outcomes:
    """Adds the outcome of all other tokens to the policy's where the sampler has it.

    Args:
      known: the policy's log-probabilities of the known tokens.
      sampler, proximal: log-probabilities by the sampler and the proximal policy, with that of all
        other tokens unless the known tokens are the vocabulary.
    """
    known = jax.lax.stop_gradient(known)
    if sampler.shape[-1] > known.shape[-1]:
        known = with_rest(known)
    bounded = jnp.maximum(jnp.maximum(sampler, NEVER), known - _MOST_LOG_RATIO)
    return Outcomes(known, bounded, proximal)


def with_rest(logprobs: Float[Array, "B T K"]) -> Float[Array, "B T outcomes"]:
    """Appends log(1 − Σ p) of the other tokens, at least log `LEAST_TAIL`."""
    rest = jnp.maximum(1 - jnp.exp(logprobs).sum(axis=-1, keepdims=True), LEAST_TAIL)
    return jnp.concatenate([logprobs, jnp.log(rest)], axis=-1)


def drift(
    losses: Losses, known: Float[Array, "B T K"], of: Outcomes
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Computes a term whose gradient is the expected gradient of a token's loss under the sampler.

    Args:
      losses: the losses of tokens, as functions of their log-probabilities.
      known: log p of the known tokens, through which gradients flow.
      of: outcomes of the draw; see `outcomes`.

    Returns:
      Σ_H sg(q(v) c(v) − α p(v)) log p(v), with α = ρ c of the other tokens; and the size of its
      gradient in the logits of all tokens, Σ_v |m(v) − p(v) Σ m|, with m(v) = q(v) c(v) − α p(v)
      in H and 0 elsewhere. It is 0 where q is p and c the same for all tokens.
    """

    def slope(policy: Array, sampler: Array, proximal: Array | None) -> Array:
        return jax.grad(lambda logprobs: losses(logprobs, sampler, proximal).sum())(policy)

    slopes = jax.vmap(slope, in_axes=-1, out_axes=-1)(*of)
    K = known.shape[-1]
    coefficients = jnp.exp(of.sampler[..., :K]) * slopes[..., :K]
    if slopes.shape[-1] > K:
        share = jnp.exp(of.sampler[..., K:] - of.policy[..., K:])
        coefficients -= share * slopes[..., K:] * jnp.exp(of.policy[..., :K])
    coefficients = jax.lax.stop_gradient(coefficients)
    return (coefficients * known).sum(axis=-1), _size(coefficients, of.policy[..., :K])


def _size(
    coefficients: Float[Array, "B T K"], policy: Float[Array, "B T K"]
) -> Float[Array, "B T"]:
    """Computes the size of the gradient in the logits; tokens without coefficients are one."""
    probabilities = jnp.exp(policy)
    total = coefficients.sum(axis=-1)
    inside = jnp.abs(coefficients - probabilities * total[..., None]).sum(axis=-1)
    return inside + jnp.maximum(1 - probabilities.sum(axis=-1), 0) * jnp.abs(total)


def total_variation(of: Outcomes) -> Float[Array, "B T"]:
    """½ Σ |q − p| over the outcomes: the distance of the sampler from the policy."""
    return 0.5 * jnp.abs(jnp.exp(of.sampler) - jnp.exp(of.policy)).sum(axis=-1)
