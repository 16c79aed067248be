"""Returns and advantages of tokens, from per-token rewards.

`mask` is true at the tokens that the policy sampled. Other tokens, such as a tool's answer, are
skipped: they take no time step and have no value. For `sequences` see
`rl_sync.algorithms.sequences`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rl_sync.algorithms.masking import whiten
from rl_sync.algorithms.sequences import (
    OfSequence,
    Sequences,
    backward_sums,
    is_last,
    next_values,
    to_tokens,
    totals,
)

Discount = float | Float[Array, "B T"]
"""γ: one value for all tokens, or one per token."""


class AdvantageEstimate(NamedTuple):
    """Advantages, and the returns that they are based on.

    Attributes:
      advantages: one per token, 0 where the mask is false; or one per trajectory.
      returns: one per token, 0 where the mask is false; None if no critic needs them.
    """

    advantages: OfSequence
    returns: Float[Array, "B T"] | None = None


def at_the_end(
    rewards: Float[Array, " trajectories"], mask: Bool[Array, "B T"], sequences: Sequences = None
) -> Float[Array, "B T"]:
    """Places each trajectory's reward at its last token under the mask, and 0 elsewhere."""
    return jnp.where(is_last(mask, sequences), to_tokens(rewards, sequences), 0.0)


def at_turns(
    discount: float, turn_discount: float, mask: Bool[Array, "B T"]
) -> Float[Array, "B T"]:
    """γ of each token: `discount`, times `turn_discount` at the last token of a reply.

    Args:
      discount: discount between two tokens.
      turn_discount: additional discount between a reply and the next one.
    """
    return jnp.where(_ends_turn(mask), discount * turn_discount, discount)


def of_turns(
    rewards: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    turn_discount: float,
    count: int,
    sequences: Sequences = None,
) -> Float[Array, " trajectories"]:
    """Σ γ^k · r_k over the replies k = 0, 1, … of each trajectory: its return at the first token
    (Sutton and Barto, 2nd edition, eq. 3.8, with a reply as the time step).

    It depends on the rewards alone, to the bit: not on lengths of replies, nor on their places.

    Args:
      rewards: at the last tokens of replies, 0 at others; ignored where the mask is false.
      turn_discount: γ; 1 for the sum of the rewards.
      count: number of trajectories in the batch.
    """
    B, T = mask.shape
    ends = _ends_turn(mask).astype(jnp.float32)
    reply = totals(ends, mask, sequences) - backward_sums(ends, 1.0, sequences)
    trajectory = jnp.arange(B)[:, None] if sequences is None else sequences
    place = jnp.where(mask, trajectory * T + reply.astype(jnp.int32), count * T)
    # A table by reply, since a sum over tokens is rounded according to their places.
    of_replies = jnp.zeros(count * T).at[place].add(rewards, mode="drop").reshape(count, T)
    return (of_replies * turn_discount ** jnp.arange(T)).sum(axis=1)


def discounted(
    rewards: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    discount: Discount,
    sequences: Sequences = None,
) -> Float[Array, "B T"]:
    """R_t = r_t + γ · R_{t+1} (Sutton and Barto, 2nd edition, eq. 3.9)."""
    decay = jnp.where(mask, discount, 1.0)
    sums = backward_sums(jnp.where(mask, rewards, 0.0), decay, sequences)
    return jnp.where(mask, sums, 0.0)


def reinforce_pp(
    rewards: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    discount: Discount,
    sequences: Sequences = None,
) -> AdvantageEstimate:
    """A = whiten(R): discounted returns, whitened over all tokens of the batch (REINFORCE++,
    arXiv:2501.03262, section 3).
    """
    returns = discounted(rewards, mask, discount, sequences)
    return AdvantageEstimate(whiten(returns, mask), returns)


def remax(
    rewards: Float[Array, "B T"],
    baselines: Float[Array, " trajectories"],
    mask: Bool[Array, "B T"],
    sequences: Sequences = None,
) -> AdvantageEstimate:
    """A_t = R_t − b, b the reward of the prompt's greedy completion (ReMax, arXiv:2310.10505,
    algorithm 2).
    """
    returns = discounted(rewards, mask, 1.0, sequences)
    return AdvantageEstimate(
        jnp.where(mask, returns - to_tokens(baselines, sequences), 0.0), returns
    )


def gae(
    rewards: Float[Array, "B T"],
    values: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    discount: Discount,
    gae_lambda: float,
    sequences: Sequences = None,
) -> AdvantageEstimate:
    """δ_t = r_t + γ · V_{t+1} − V_t; A_t = δ_t + γλ · A_{t+1}; R_t = A_t + V_t (GAE,
    arXiv:1506.02438, eq. 16). The advantages are not whitened; see `whiten`.

    Args:
      values: V before each token; the value behind the last is 0.
      gae_lambda: λ.
    """
    following = next_values(values, mask, sequences)
    delta = jnp.where(mask, rewards + discount * following - values, 0.0)
    sums = backward_sums(delta, jnp.where(mask, discount * gae_lambda, 1.0), sequences)
    advantages = jnp.where(mask, sums, 0.0)
    return AdvantageEstimate(advantages, jnp.where(mask, advantages + values, 0.0))


def n_step(
    rewards: Float[Array, "B T"],
    values: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    discount: Discount,
    n_steps: int,
    sequences: Sequences = None,
) -> AdvantageEstimate:
    """R_t = Σ_{k<n} γ^k · r_{t+k} + γ^n · V_{t+n}; A_t = R_t − V_t (Sutton and Barto, 2nd edition,
    eq. 7.1).

    Args:
      values: V before each token; the value behind the last is 0.
      n_steps: n, at least 1.
    """

    def further(_: int, returns: Float[Array, "B T"]) -> Float[Array, "B T"]:
        return rewards + discount * next_values(returns, mask, sequences)

    returns = jnp.where(mask, jax.lax.fori_loop(0, n_steps, further, values), 0.0)
    return AdvantageEstimate(jnp.where(mask, returns - values, 0.0), returns)


def _ends_turn(mask: Bool[Array, "B T"]) -> Bool[Array, "B T"]:
    return mask & ~jnp.pad(mask[:, 1:], ((0, 0), (0, 1)))
