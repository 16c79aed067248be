"""Credit: from a batch's rewards to an advantage for each token, and which trajectories count.

Letters in shapes: B rows, T positions.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl_sync.algorithms import returns, shaping
from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.algorithms.masking import whiten
from rl_sync.algorithms.pieces import ADVANTAGES, KL_ESTIMATORS, call
from rl_sync.algorithms.sequences import (
    OfSequence,
    Sequences,
    is_last,
    to_tokens,
    trajectory_totals,
)
from rl_sync.algorithms.values import explained_variance

Metrics = dict[str, Float[Array, ""]]


class Trajectories(NamedTuple):
    """What credit is given for, and by: the whole batch of a trainer step.

    Attributes:
      rewards: one a trajectory.
      mask: true at the completions' tokens.
      sequences: see `rl_sync.algorithms.sequences`.
      is_truncated: whether a completion was cut at the most tokens.
      behavior_logprobs, ref_logprobs: for a divergence in the reward; no reference without one.
      baselines: rewards of greedy completions, for an advantage that takes them.
      values: before each token, where the algorithm asks for them.
      kl_coefficient: weight of the divergence; None for the algorithm's.
    """

    rewards: Float[Array, " trajectories"]
    mask: Bool[Array, "B T"]
    sequences: Sequences
    is_truncated: Bool[Array, " trajectories"]
    behavior_logprobs: Float[Array, "B T"]
    ref_logprobs: Float[Array, "B T"] | None
    baselines: Float[Array, " trajectories"] | None = None
    values: Float[Array, "B T"] | None = None
    kl_coefficient: Float[Array, ""] | None = None


class Credit(NamedTuple):
    """What the loss of each token is multiplied with; one a token, or one a row.

    Attributes:
      advantages: how much better it did.
      weights: 0 for what is left out of the loss, 1 elsewhere.
      returns: what values are to become; None without them.
    """

    advantages: OfSequence
    weights: OfSequence
    returns: Float[Array, "B T"] | None = None


def give(
    algorithm: Algorithm, batch: Trajectories, group_size: int, max_tokens: int
) -> tuple[Credit, Metrics]:
    """Gives credit to a whole batch: statistics of groups and of the batch are over all of it.

    Args:
      max_tokens: the most tokens of a completion.
    """
    mask, sequences = batch.mask, batch.sequences
    count = batch.rewards.size
    lengths = trajectory_totals(jnp.ones(mask.shape), mask, sequences, count)
    rewards = batch.rewards
    if algorithm.overlong_tokens:
        rewards += shaping.soft_overlong_penalty(lengths, max_tokens, algorithm.overlong_tokens)
    kept = _kept(algorithm, rewards, batch.is_truncated, group_size)
    weights = to_tokens(kept.astype(jnp.float32), sequences)
    penalty = _penalty(algorithm, batch)
    given = {**vars(algorithm), **batch._asdict(), "lengths": lengths, "group_size": group_size}
    estimator = ADVANTAGES[algorithm.advantage]
    if estimator.of_tokens:
        of_tokens = returns.at_the_end(rewards, mask, sequences) - penalty
        estimate: returns.Estimate = call(estimator.function, given, rewards=of_tokens)
        advantages = estimate.advantages
        if estimator.needs_values and algorithm.whiten:
            advantages = jnp.where(mask, whiten(advantages, mask), 0.0)
        credit = Credit(advantages, weights, estimate.returns if estimator.needs_values else None)
    else:
        rewards -= trajectory_totals(penalty, mask, sequences, count)
        of_trajectories = call(estimator.function, given, rewards=rewards)
        credit = Credit(to_tokens(of_trajectories, sequences), weights)
    return credit, _metrics(batch, credit, lengths, group_size)


def is_truncated(
    tokens: Int[Array, "B T"],
    mask: Bool[Array, "B T"],
    sequences: Sequences,
    count: int,
    max_tokens: int,
    end_ids: tuple[int, ...],
) -> Bool[Array, " trajectories"]:
    """Whether a completion has the most tokens and does not end as completions do.

    Args:
      count: trajectories of the batch.
      max_tokens: the most tokens of a completion.
      end_ids: tokens that a completion ends with which was not cut.
    """
    lengths = trajectory_totals(jnp.ones(mask.shape), mask, sequences, count)
    ended = is_last(mask, sequences) & jnp.isin(tokens, jnp.array(end_ids, jnp.int32))
    endings = trajectory_totals(ended.astype(jnp.float32), mask, sequences, count)
    return (lengths >= max_tokens) & (endings == 0)


def _kept(
    algorithm: Algorithm,
    rewards: Float[Array, " trajectories"],
    is_truncated: Bool[Array, " trajectories"],
    group_size: int,
) -> Bool[Array, " trajectories"]:
    low, high = algorithm.group_mean_low, algorithm.group_mean_high
    kept = shaping.within_difficulty(rewards, group_size, low, high)
    if algorithm.mask_truncated:
        kept &= ~is_truncated
    if algorithm.need_spread:
        kept &= shaping.has_spread(rewards, group_size)
    if algorithm.extremes:
        kept &= shaping.extremes(rewards, group_size, algorithm.extremes)
    return kept


def _penalty(algorithm: Algorithm, batch: Trajectories) -> Float[Array, "B T"]:
    """What the divergence from the reference takes from the reward of each token."""
    if batch.ref_logprobs is None or algorithm.kl_place != "reward":
        return jnp.zeros(batch.mask.shape)
    kl = KL_ESTIMATORS[algorithm.kl_estimator](batch.behavior_logprobs, batch.ref_logprobs)
    coefficient = algorithm.kl_coefficient if batch.kl_coefficient is None else batch.kl_coefficient
    return jnp.where(batch.mask, coefficient * kl, 0.0)


def _metrics(
    batch: Trajectories, credit: Credit, lengths: Float[Array, " trajectories"], group_size: int
) -> Metrics:
    rewards, mask = batch.rewards, batch.mask
    spread = shaping.has_spread(rewards, group_size)
    tokens = jnp.maximum(mask.sum(), 1)

    def mean(values: OfSequence) -> Float[Array, ""]:
        return jnp.where(mask, values, 0.0).sum() / tokens

    average = mean(credit.advantages)
    of_values = {}
    if batch.values is not None and credit.returns is not None:
        explained = explained_variance(batch.values, credit.returns, mask)
        of_values = {"explained_variance": explained, "value_mean": mean(batch.values)}
    return {
        **of_values,
        "reward_mean": rewards.mean(),
        "reward_std": rewards.std(),
        "reward_min": rewards.min(),
        "reward_max": rewards.max(),
        "groups_without_spread": 1 - spread.mean(),
        "advantage_mean": average,
        "advantage_std": jnp.sqrt(mean(jnp.square(credit.advantages - average))),
        "left_out_fraction": 1 - mean(credit.weights),
        "completion_tokens_mean": lengths.mean(),
        "completion_tokens_max": lengths.max(),
        "truncated_fraction": batch.is_truncated.mean(),
    }
