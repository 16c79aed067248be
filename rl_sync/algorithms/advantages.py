"""Advantages of trajectories within their group, or their role: one advantage per trajectory.

Rows are complete groups of `group_size` trajectories each, one after the other. Every function
raises ValueError if the rewards are not complete groups. Equal rewards have advantages of exactly
0, in every floating-point type and for every size of a group: see `masking.centered`.

A trajectory without tokens could not be judged. Its reward must be the mean of its group's others
(`shaping.without_unjudged`), and `lengths` say that it is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.algorithms.masking import centered, whiten


def by_group(
    values: Float[Array, " B"], group_size: int, least: int = 2
) -> Float[Array, "groups G"]:
    """Reshapes values to one row per group.

    Args:
      least: minimum number of trajectories in a group; 2 where they are compared.
    """
    if group_size < least or values.shape[0] % group_size:
        raise ValueError(
            f"Advantages compare the trajectories of a group: {values.shape[0]} rewards are not"
            f" whole groups of {group_size} (at least {least})."
        )
    return values.reshape(-1, group_size)


def _count(lengths: Float[Array, " B"], group_size: int) -> Int[Array, "groups 1"]:
    return (by_group(lengths, group_size) > 0).sum(axis=1, keepdims=True)


def dr_grpo(rewards: Float[Array, " B"], group_size: int) -> Float[Array, " B"]:
    """A_i = r_i − mean(r) (Dr. GRPO, arXiv:2503.20783, section 3.2)."""
    return centered(by_group(rewards, group_size), axis=1).reshape(-1)


def grpo(
    rewards: Float[Array, " B"],
    group_size: int,
    lengths: Float[Array, " B"] | None = None,
    epsilon: float = 1e-6,
) -> Float[Array, " B"]:
    """A_i = (r_i − mean(r)) / (std(r) + ε), the sample standard deviation (DeepSeekMath,
    arXiv:2402.03300, section 4.1.2). A group without spread has advantages 0.

    Args:
      lengths: completion tokens of each trajectory; None if all have some.
    """
    deviations = centered(by_group(rewards, group_size), axis=1)
    variance = jnp.square(deviations).sum(axis=1, keepdims=True) / (group_size - 1)
    if lengths is not None:
        # Exactly 1 where all count, and so to the bit the variance without lengths.
        count = _count(lengths, group_size).astype(variance.dtype)
        variance *= (group_size - 1) / jnp.maximum(count - 1, 1)
    return (deviations / (jnp.sqrt(variance) + epsilon)).reshape(-1)


def gdpo(
    parts: Float[Array, "B K"],
    part_weights: Sequence[float],
    lengths: Float[Array, " B"],
    group_size: int,
) -> Float[Array, " B"]:
    """Σ_k w_k A_k, where A_k is `grpo` of the scores by part k of the reward, then whitened over
    the trajectories of the batch (GDPO, arXiv:2601.05242, section 3). So the spread of a part in a
    group does not decide how much the part counts; its weight does.

    Args:
      part_weights: w_k, with the sign that the part has in the reward.
      lengths: completion tokens of each trajectory.
    """
    of_parts = (
        weight * grpo(scores, group_size, lengths)
        for weight, scores in zip(part_weights, parts.T, strict=True)
    )
    return whiten(sum(of_parts, jnp.zeros_like(parts[:, 0])), lengths > 0)


def rloo(
    rewards: Float[Array, " B"], group_size: int, lengths: Float[Array, " B"] | None = None
) -> Float[Array, " B"]:
    """A_i = r_i − mean of the other trajectories' rewards (RLOO, arXiv:2402.14740, eq. 8).

    Args:
      lengths: completion tokens of each trajectory; None if all have some.
    """
    advantages = dr_grpo(rewards, group_size) * (group_size / (group_size - 1))
    if lengths is None:
        return advantages
    # n / (n − 1) of the n that count, in place of the factor for all: times 1 where all do.
    count = _count(lengths, group_size).astype(advantages.dtype)
    others = jnp.maximum(count - 1, 1)
    factor = ((group_size - 1) / others) / (group_size / jnp.maximum(count, 1))
    return (by_group(advantages, group_size) * factor).reshape(-1)


def opo(
    rewards: Float[Array, " B"], lengths: Float[Array, " B"], group_size: int
) -> Float[Array, " B"]:
    """A_i = r_i − Σ |o_j| r_j / Σ |o_j|: the baseline of least variance where a trajectory's
    gradient grows with its length (OPO, arXiv:2505.23585, section 3).

    Args:
      lengths: completion tokens of each trajectory.
    """
    grouped, tokens = by_group(rewards, group_size), by_group(lengths, group_size)
    return centered(grouped, tokens, axis=1).reshape(-1)


def reinforce_pp_baseline(
    rewards: Float[Array, " B"],
    lengths: Float[Array, " B"],
    group_size: int,
    epsilon: float = 1e-8,
) -> Float[Array, " B"]:
    """r_i − mean(r of its group), then whitened over all tokens of the batch, where a trajectory
    counts once per token: (x − mean) / √(var + ε) with the sample variance (REINFORCE++ with
    baseline, arXiv:2501.03262, section 3). A group of equal rewards has the advantage −mean /
    √(var + ε) of the batch, which is 0 if no group has spread.

    Args:
      lengths: completion tokens of each trajectory.
    """
    return whiten(dr_grpo(rewards, group_size), lengths, epsilon)


def rae(
    rewards: Float[Array, " B"],
    lengths: Float[Array, " B"],
    roles: Int[Array, " B"] | None = None,
) -> Float[Array, " B"]:
    """A_i = r_i − mean(r of the batch's trajectories of the same role): role-conditioned advantage
    estimation (SPIRAL, arXiv:2506.24119, section 3.3), with the batch's mean in place of a running
    mean. A trajectory alone in its role has the advantage 0.

    Args:
      lengths: completion tokens of each trajectory.
      roles: number of each trajectory's role; None for one role.
    """
    if roles is None:
        return centered(rewards, lengths > 0)
    of_role = (roles[:, None] == roles) & (lengths > 0)
    return jnp.diagonal(centered(jnp.broadcast_to(rewards, of_role.shape), of_role, axis=1))


def pair(
    rewards: Float[Array, " B"], group_size: int, lengths: Float[Array, " B"] | None = None
) -> Float[Array, " B"]:
    """1 for the best trajectory of a group, −1 for the worst (the first of equals); 0 for the
    others and for groups without spread. This is the pair that DPO compares, made of the policy's
    own trajectories (online DPO, arXiv:2402.04792, section 3).

    Args:
      lengths: completion tokens of each trajectory; None if all have some.
    """
    grouped = by_group(rewards, group_size)
    counts = jnp.ones(grouped.shape, bool) if lengths is None else by_group(lengths, group_size) > 0
    indices = jnp.arange(group_size)
    best_index = jnp.where(counts, grouped, -jnp.inf).argmax(axis=1, keepdims=True)
    worst_index = jnp.where(counts, grouped, jnp.inf).argmin(axis=1, keepdims=True)
    chosen, rejected = indices == best_index, indices == worst_index
    # Without spread both indices are that of the first.
    return (chosen.astype(rewards.dtype) - rejected).reshape(-1)


def preference(rewards: Float[Array, " B"], group_size: int) -> Float[Array, " B"]:
    """1 for the first trajectory of a group, which was preferred, and −1 for the others."""
    return jnp.where(jnp.arange(rewards.size) % group_size == 0, 1.0, -1.0)


def demonstration(rewards: Float[Array, " B"]) -> Float[Array, " B"]:
    """1: every demonstration has the same weight."""
    return jnp.ones_like(rewards)


def best(rewards: Float[Array, " B"], group_size: int) -> Float[Array, " B"]:
    """1 for the best trajectories of a group, 0 for the others and for groups without spread: the
    trajectories that RAFT trains on (arXiv:2304.06767, algorithm 1).
    """
    grouped = by_group(rewards, group_size)
    highest, lowest = (f(grouped, axis=1, keepdims=True) for f in (jnp.max, jnp.min))
    return ((grouped == highest) & (highest > lowest)).astype(rewards.dtype).reshape(-1)


def none(rewards: Float[Array, " B"]) -> Float[Array, " B"]:
    """0: rewards have no part in the loss, and a group may be one trajectory."""
    return jnp.zeros_like(rewards)
