"""How much better a trajectory did than its group: one advantage a trajectory.

Rows are whole groups, one after the other, of `group_size` trajectories each.
"""

from __future__ import annotations

from jaxtyping import Array, Float


def _by_group(rewards: Float[Array, " B"], group_size: int) -> Float[Array, "groups G"]:
    if group_size < 2 or rewards.shape[0] % group_size:
        raise ValueError(
            f"Advantages compare the trajectories of a group: {rewards.shape[0]} rewards are not"
            f" whole groups of {group_size} (at least 2)."
        )
    return rewards.reshape(-1, group_size)


def dr_grpo(rewards: Float[Array, " B"], group_size: int) -> Float[Array, " B"]:
    """A_i = r_i − mean(r) (Dr. GRPO, arXiv:2503.20783, section 3.2).

    Raises:
      ValueError: the rewards are not whole groups.
    """
    grouped = _by_group(rewards, group_size)
    return (grouped - grouped.mean(axis=1, keepdims=True)).reshape(-1)


def grpo(rewards: Float[Array, " B"], group_size: int, epsilon: float = 1e-6) -> Float[Array, " B"]:
    """A_i = (r_i − mean(r)) / (std(r) + ε), the sample standard deviation (DeepSeekMath,
    arXiv:2402.03300, section 4.1.2). A group without spread has advantages 0.

    Raises:
      ValueError: the rewards are not whole groups.
    """
    grouped = _by_group(rewards, group_size)
    centered = grouped - grouped.mean(axis=1, keepdims=True)
    return (centered / (grouped.std(axis=1, ddof=1, keepdims=True) + epsilon)).reshape(-1)


def rloo(rewards: Float[Array, " B"], group_size: int) -> Float[Array, " B"]:
    """A_i = r_i − mean of the other trajectories' rewards (RLOO, arXiv:2402.14740, eq. 8).

    Raises:
      ValueError: the rewards are not whole groups.
    """
    return dr_grpo(rewards, group_size) * (group_size / (group_size - 1))


ADVANTAGES = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}
"""By the name that a config uses."""
