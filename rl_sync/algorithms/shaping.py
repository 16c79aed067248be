"""Changes to a batch's rewards, and choices among its groups, before advantages are computed."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rl_sync.algorithms.advantages import by_group
from rl_sync.algorithms.masking import mean


def soft_overlong_penalty(
    lengths: Float[Array, " B"], max_tokens: int, margin_tokens: int
) -> Float[Array, " B"]:
    """0 up to L − m tokens, then (L − m − |o|) / m, which is −1 at L (DAPO, arXiv:2503.14476, eq.
    13).

    Args:
      max_tokens: L, maximum number of tokens of a completion.
      margin_tokens: m.
    """
    return jnp.clip((max_tokens - margin_tokens - lengths) / margin_tokens, -1.0, 0.0)


def without_unjudged(
    rewards: Float[Array, " B"], lengths: Float[Array, " B"], group_size: int
) -> Float[Array, " B"]:
    """Gives trajectories without tokens, which could not be judged, their group's mean of the
    others: so they move no mean, add no spread and are no extreme. A group of them alone gets 0.

    Args:
      lengths: tokens of each completion that can be learned from.
    """
    grouped = by_group(rewards, group_size, least=1)
    judged = by_group(lengths, group_size, least=1) > 0
    means = mean(grouped, judged, axis=1).astype(rewards.dtype)
    return jnp.where(judged, grouped, means).reshape(-1)


def has_spread(rewards: Float[Array, " B"], group_size: int) -> Bool[Array, " B"]:
    """Marks trajectories whose group has at least two different rewards (dynamic sampling in DAPO,
    arXiv:2503.14476, eq. 11).
    """
    grouped = by_group(rewards, group_size, least=1)
    return jnp.repeat(grouped.max(axis=1) > grouped.min(axis=1), group_size)


def within_difficulty(
    rewards: Float[Array, " B"], group_size: int, low: float, high: float
) -> Bool[Array, " B"]:
    """Marks trajectories whose group has a mean reward in [low, high]: neither too hard nor too
    easy (Kimi k1.5, arXiv:2501.12599, section 2.3.4).
    """
    means = mean(by_group(rewards, group_size, least=1), axis=1)
    return jnp.repeat((low <= means) & (means <= high), group_size)


def extremes(
    rewards: Float[Array, " B"], lengths: Float[Array, " B"], group_size: int, count: int
) -> Bool[Array, " B"]:
    """Keeps `count` trajectories of each group: half of them the best, half the worst.

    Among equals the first count as the worse ones. The over-sampled trajectories that are left out
    matter least (PODS, arXiv:2504.13818, section 3.2).

    Args:
      lengths: tokens of each completion; trajectories without any could not be judged, and have no
        rank.
      count: number of trajectories to keep per group; an even number.
    """
    judged = by_group(lengths, group_size, least=1) > 0
    grouped = jnp.where(judged, by_group(rewards, group_size, least=1), jnp.inf)
    rank = jnp.argsort(jnp.argsort(grouped, axis=1, stable=True), axis=1)
    half = count // 2
    above = judged.sum(axis=1, keepdims=True) - half
    return (judged & ((rank < half) | (rank >= above))).reshape(-1)
