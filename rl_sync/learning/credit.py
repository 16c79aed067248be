"""Credit assignment: from rewards to an advantage for each token and a weight for each trajectory.

Letters in shapes: B rows, T positions.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rl_sync.algorithms import returns, shaping
from rl_sync.algorithms.algorithm import ADVANTAGES, KL_ESTIMATORS, Algorithm, call
from rl_sync.algorithms.masking import centered, whiten
from rl_sync.algorithms.returns import AdvantageEstimate
from rl_sync.algorithms.sequences import (
    OfSequence,
    is_last,
    to_tokens,
    trajectory_totals,
)
from rl_sync.algorithms.values import explained_variance
from rl_sync.types import Rows, TrainBatch

Metrics = dict[str, Float[Array, ""]]

ADVANTAGES_NAME = "advantages"
"""Name of the metric with a value for each trajectory: the mean of its tokens' advantages."""
TOKEN_ADVANTAGES = "token_advantages"
"""Name of the metric with a value for each token, if tokens have advantages of their own."""


def give(
    algorithm: Algorithm,
    batch: TrainBatch,
    *,
    group_size: int,
    max_tokens: int,
    end_ids: tuple[int, ...],
    ref_logprobs: Float[Array, "B T"] | None = None,
    values: Float[Array, "B T"] | None = None,
    kl_coefficient: Float[Array, ""] | None = None,
) -> tuple[AdvantageEstimate, OfSequence, Metrics]:
    """Assigns credit to a whole batch, so that statistics cover all of it.

    Args:
      group_size: number of trajectories of a group.
      max_tokens: maximum number of tokens of a completion.
      end_ids: tokens that end a completion which was not cut.
      ref_logprobs: logprobs of the reference model, for a divergence in the reward.
      values: value before each token, for advantages that use a critic.
      kl_coefficient: weight of the divergence; None for the algorithm's value.

    Returns:
      (estimate, weights, metrics). The estimate has advantages, and returns if there are values.
      The weights are 0 for trajectories that the loss excludes and 1 for others. The metrics of the
      batch include the mean advantage of each trajectory as `ADVANTAGES_NAME`, and per-token
      advantages as `TOKEN_ADVANTAGES`.
    """
    rows, rewards = batch.rows, batch.rewards
    mask, sequences = rows.completion_mask, rows.sequences
    lengths = trajectory_totals(jnp.ones(mask.shape), mask, sequences, rewards.size)
    if algorithm.overlong_tokens:
        rewards += shaping.soft_overlong_penalty(lengths, max_tokens, algorithm.overlong_tokens)
    rewards = shaping.without_unjudged(rewards, lengths, group_size)
    cut = batch.truncated
    if cut is None:
        cut = _is_truncated(rows, lengths, max_tokens, end_ids)
    estimator, compared = ADVANTAGES[algorithm.advantage], rewards
    if algorithm.turn_discount < 1 and not estimator.of_tokens:
        compared = returns.of_turns(
            _at_tokens(rows, rewards), mask, algorithm.turn_discount, rewards.size, sequences
        )
        compared = shaping.without_unjudged(compared, lengths, group_size)
    kept = _kept(algorithm, rewards, compared, lengths, cut, group_size)
    weights = to_tokens(kept.astype(jnp.float32), sequences)
    penalty = jnp.zeros(mask.shape)
    if ref_logprobs is not None and algorithm.kl_place == "reward":
        kl = KL_ESTIMATORS[algorithm.kl_estimator].function(rows.behavior_logprobs, ref_logprobs)
        coefficient = algorithm.kl_coefficient if kl_coefficient is None else kl_coefficient
        penalty = jnp.where(mask, coefficient * kl, 0.0)
    known = {"mask": mask, "sequences": sequences, "values": values, "baselines": batch.baselines}
    given = {**vars(algorithm), **known, "lengths": lengths, "group_size": group_size}
    if algorithm.turn_discount < 1:
        given["discount"] = returns.at_turns(algorithm.discount, algorithm.turn_discount, mask)
    if estimator.of_tokens:
        of_tokens = _at_tokens(rows, rewards) - penalty
        estimate: AdvantageEstimate = call(estimator.function, given, rewards=of_tokens)
        if not estimator.needs_values:
            estimate = AdvantageEstimate(estimate.advantages)
        elif algorithm.whiten:
            estimate = estimate._replace(advantages=whiten(estimate.advantages, mask))
        total = trajectory_totals(estimate.advantages, mask, sequences, rewards.size)
        of_trajectories = total / jnp.maximum(lengths, 1)
    else:
        less = compared - trajectory_totals(penalty, mask, sequences, rewards.size)
        less = shaping.without_unjudged(less, lengths, group_size)
        of_trajectories = call(estimator.function, given, rewards=less)
        of_trajectories = jnp.where(lengths > 0, of_trajectories, 0.0)
        estimate = AdvantageEstimate(to_tokens(of_trajectories, sequences))
    metrics = _token_metrics(mask, estimate, weights, values)
    statistics = _trajectory_metrics(batch.rewards, compared, lengths, cut, group_size)
    # Rewards of unjudged completions have no meaning.
    metrics |= {
        name: jnp.where(mask.any(), value, jnp.nan) if name.startswith("reward_") else value
        for name, value in statistics.items()
    }
    metrics[ADVANTAGES_NAME] = of_trajectories
    if estimator.of_tokens:
        metrics[TOKEN_ADVANTAGES] = estimate.advantages
    return estimate, weights, metrics


def _at_tokens(rows: Rows, rewards: Float[Array, " trajectories"]) -> Float[Array, "B T"]:
    """Assigns rewards of turns to the ends of replies, and any other reward to the last token."""
    mask, sequences, turns = rows.completion_mask, rows.sequences, rows.turn_rewards
    if turns is None:
        return returns.at_the_end(rewards, mask, sequences)
    given = returns.of_turns(turns, mask, 1.0, rewards.size, sequences)
    rest = returns.at_the_end(rewards - given, mask, sequences)
    return rest + jnp.where(mask, turns, 0.0)


def _is_truncated(
    rows: Rows,
    lengths: Float[Array, " trajectories"],
    max_tokens: int,
    end_ids: tuple[int, ...],
) -> Bool[Array, " trajectories"]:
    """Finds the completions that have the maximum number of tokens and no end of sequence."""
    mask, sequences = rows.completion_mask, rows.sequences
    ended = is_last(mask, sequences) & jnp.isin(rows.tokens, jnp.array(end_ids, jnp.int32))
    endings = trajectory_totals(ended.astype(jnp.float32), mask, sequences, lengths.size)
    return (lengths >= max_tokens) & (endings == 0)


def _kept(
    algorithm: Algorithm,
    rewards: Float[Array, " trajectories"],
    compared: Float[Array, " trajectories"],
    lengths: Float[Array, " trajectories"],
    is_truncated: Bool[Array, " trajectories"],
    group_size: int,
) -> Bool[Array, " trajectories"]:
    """Marks the trajectories in the loss; `compared` are the returns that advantages compare."""
    low, high = algorithm.group_mean_low, algorithm.group_mean_high
    kept = shaping.within_difficulty(rewards, group_size, low, high)
    if algorithm.mask_truncated:
        kept &= ~is_truncated
    if algorithm.needs_spread:
        kept &= shaping.has_spread(compared, group_size)
    if algorithm.extremes:
        kept &= shaping.extremes(rewards, lengths, group_size, algorithm.extremes)
    return kept


def _token_metrics(
    mask: Bool[Array, "B T"],
    estimate: AdvantageEstimate,
    weights: OfSequence,
    values: Float[Array, "B T"] | None,
) -> Metrics:
    """Averages over the tokens of the completions."""
    tokens = jnp.maximum(mask.sum(), 1)

    def mean(values: OfSequence) -> Float[Array, ""]:
        return jnp.where(mask, values, 0.0).sum() / tokens

    average = mean(estimate.advantages)
    metrics = {
        "advantage_mean": average,
        "advantage_std": jnp.sqrt(mean(jnp.square(estimate.advantages - average))),
        "left_out_fraction": mean(1.0 - weights),
    }
    if values is not None and estimate.returns is not None:
        metrics["explained_variance"] = explained_variance(values, estimate.returns, mask)
        metrics["value_mean"] = mean(values)
    return metrics


def _trajectory_metrics(
    rewards: Float[Array, " trajectories"],
    compared: Float[Array, " trajectories"],
    lengths: Float[Array, " trajectories"],
    is_truncated: Bool[Array, " trajectories"],
    group_size: int,
) -> Metrics:
    """Statistics of the rewards as they were judged, and of those that advantages compare.

    Trajectories without tokens could not be judged, and are not counted among the rewards; nor is a
    group of them alone counted among the groups.
    """
    judged = lengths > 0
    rewards = shaping.without_unjudged(rewards, lengths, rewards.size)
    groups = judged.reshape(-1, group_size).any(axis=1)
    spread = shaping.has_spread(compared, group_size)[::group_size]
    squares = jnp.square(jnp.where(judged, centered(rewards), 0.0))
    return {
        "reward_mean": rewards.mean(),
        "reward_std": jnp.sqrt(squares.mean() * (judged.size / jnp.maximum(judged.sum(), 1))),
        "reward_min": rewards.min(),
        "reward_max": rewards.max(),
        "groups_without_spread": 1 - spread.sum() / jnp.maximum(groups.sum(), 1),
        "completion_tokens_mean": lengths.mean(),
        "completion_tokens_max": lengths.max(),
        "truncated_fraction": is_truncated.mean(),
    }
