"""Credit assignment: from rewards to an advantage for each token and a weight for each trajectory.

Letters in shapes: B rows, T positions.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rl_sync.algorithms import returns, shaping
from rl_sync.algorithms.algorithm import ADVANTAGES, KL_ESTIMATORS, call
from rl_sync.algorithms.distillation import sampled_advantages
from rl_sync.algorithms.masking import centered, whiten
from rl_sync.algorithms.returns import AdvantageEstimate
from rl_sync.algorithms.sequences import (
    OfSequence,
    Sequences,
    is_last,
    to_tokens,
    trajectory_totals,
)
from rl_sync.algorithms.values import explained_variance
from rl_sync.learning.objective import LossConfig, Metrics
from rl_sync.types import Rows, TrainBatch

ADVANTAGES_NAME = "advantages"
"""Name of the metric with a value for each trajectory: the mean of its tokens' advantages."""
TOKEN_ADVANTAGES = "token_advantages"
"""Name of the metric with a value for each token, if tokens have advantages of their own."""


def give(
    loss: LossConfig,
    batch: TrainBatch,
    ref_logprobs: Float[Array, "B T"] | None = None,
    values: Float[Array, "B T"] | None = None,
    kl_coefficient: Float[Array, ""] | None = None,
    teacher_logprobs: Float[Array, "B T"] | None = None,
) -> tuple[AdvantageEstimate, OfSequence, Metrics]:
    """Assigns credit to a whole batch, so that statistics cover all of it.

    Args:
      ref_logprobs: logprobs of the reference model, for a divergence in the reward.
      values: value before each token, for advantages that use a critic.
      kl_coefficient: weight of the divergence; None for the algorithm's value.
      teacher_logprobs: logprobs of the teacher, for advantages from them.

    Returns:
      (estimate, weights, metrics). The estimate has advantages, and returns if there are values.
      The weights are 0 for trajectories that the loss excludes and 1 for others. The metrics of the
      batch include the mean advantage of each trajectory as `ADVANTAGES_NAME`, and per-token
      advantages as `TOKEN_ADVANTAGES`.
    """
    algorithm, rows, mask = loss.algorithm, batch.rows, batch.rows.completion_mask
    judged = _judged(loss, batch)
    weights = to_tokens(_kept(loss, judged).astype(jnp.float32), rows.sequences)
    penalty = jnp.zeros(mask.shape)
    if ref_logprobs is not None and algorithm.kl_place == "reward":
        kl = KL_ESTIMATORS[algorithm.kl_estimator].function(rows.behavior_logprobs, ref_logprobs)
        coefficient = algorithm.kl_coefficient if kl_coefficient is None else kl_coefficient
        penalty = jnp.where(mask, coefficient * kl, 0.0)
    estimate, of_trajectories = _estimated(loss, batch, judged, values, penalty)
    if teacher_logprobs is not None:
        taught = sampled_advantages(rows.behavior_logprobs, teacher_logprobs)
        taught = jnp.where(mask, algorithm.distillation_coefficient * taught, 0.0)
        estimate = estimate._replace(advantages=estimate.advantages + taught)
        total = trajectory_totals(taught, mask, rows.sequences, batch.rewards.size)
        of_trajectories += total / jnp.maximum(judged.lengths, 1)
    metrics = _token_metrics(mask, estimate, weights, values)
    if loss.outcome_weights or algorithm.overlong_tokens:
        alike = ~shaping.has_spread(judged.outcomes, loss.group_size)
        alike = to_tokens(alike.astype(jnp.float32), rows.sequences)
        sizes = jnp.where(mask, weights * jnp.abs(estimate.advantages), 0.0)
        metrics["shaped_advantages"] = (alike * sizes).sum() / jnp.maximum(sizes.sum(), 1e-12)
    statistics = _trajectory_metrics(batch.rewards, judged, loss.group_size)
    # Rewards of unjudged completions have no meaning.
    metrics |= {
        name: jnp.where(mask.any(), value, jnp.nan) if name.startswith("reward_") else value
        for name, value in statistics.items()
    }
    metrics[ADVANTAGES_NAME] = of_trajectories
    if ADVANTAGES[algorithm.advantage].of_tokens or teacher_logprobs is not None:
        metrics[TOKEN_ADVANTAGES] = estimate.advantages
    return estimate, weights, metrics


class _Judged(NamedTuple):
    """Figures of trajectories.

    Attributes:
      rewards: rewards with the penalty of overlong completions.
      compared: returns that advantages compare.
      outcomes: outcomes, without penalties: rewards as they were judged, or the sum of some parts.
      lengths: number of tokens of the completion.
      is_truncated: whether the completion was cut.
    """

    rewards: Float[Array, " trajectories"]
    compared: Float[Array, " trajectories"]
    outcomes: Float[Array, " trajectories"]
    lengths: Float[Array, " trajectories"]
    is_truncated: Bool[Array, " trajectories"]


def _judged(loss: LossConfig, batch: TrainBatch) -> _Judged:
    algorithm, rows, rewards = loss.algorithm, batch.rows, batch.rewards
    mask, sequences = rows.completion_mask, rows.sequences
    lengths = trajectory_totals(jnp.ones(mask.shape), mask, sequences, rewards.size)
    if algorithm.overlong_tokens:
        rewards += shaping.soft_overlong_penalty(
            lengths, loss.max_completion_tokens, algorithm.overlong_tokens
        )
    rewards = shaping.without_unjudged(rewards, lengths, loss.group_size)
    cut = _is_truncated(rows, lengths, loss) if batch.truncated is None else batch.truncated
    compared = rewards
    if algorithm.turn_discount < 1 and not ADVANTAGES[algorithm.advantage].of_tokens:
        compared = returns.of_turns(
            _at_tokens(rows, rewards, sequences),
            mask,
            algorithm.turn_discount,
            rewards.size,
            sequences,
        )
        compared = shaping.without_unjudged(compared, lengths, loss.group_size)
    return _Judged(rewards, compared, _outcomes(loss, batch, lengths), lengths, cut)


def _outcomes(
    loss: LossConfig, batch: TrainBatch, lengths: Float[Array, " trajectories"]
) -> Float[Array, " trajectories"]:
    outcomes = batch.rewards
    if loss.outcome_weights:
        assert batch.parts is not None, "the reward has parts"
        outcomes = (batch.parts * jnp.array(loss.outcome_weights, jnp.float32)).sum(axis=1)
    return shaping.without_unjudged(outcomes, lengths, loss.group_size)


def _estimated(
    loss: LossConfig,
    batch: TrainBatch,
    judged: _Judged,
    values: Float[Array, "B T"] | None,
    penalty: Float[Array, "B T"],
) -> tuple[AdvantageEstimate, Float[Array, " trajectories"]]:
    """Returns the advantages of tokens, and the mean advantage of each trajectory.

    Args:
      penalty: divergence to subtract from the reward of each token.
    """
    algorithm, estimator = loss.algorithm, ADVANTAGES[loss.algorithm.advantage]
    rows, (rewards, compared, _, lengths, _) = batch.rows, judged
    mask, sequences = rows.completion_mask, rows.sequences
    known = {"mask": mask, "sequences": sequences, "values": values, "baselines": batch.baselines}
    given = {**vars(algorithm), **known, "lengths": lengths, "group_size": loss.group_size}
    given["roles"] = batch.roles
    if algorithm.turn_discount < 1:
        given["discount"] = returns.at_turns(algorithm.discount, algorithm.turn_discount, mask)
    if not estimator.of_tokens:
        less = compared - trajectory_totals(penalty, mask, sequences, rewards.size)
        less = shaping.without_unjudged(less, lengths, loss.group_size)
        if estimator.needs_parts:
            given |= _parts(loss, batch, less, lengths)
        of_trajectories = call(estimator.function, given, rewards=less)
        of_trajectories = jnp.where(lengths > 0, of_trajectories, 0.0)
        return AdvantageEstimate(to_tokens(of_trajectories, sequences)), of_trajectories
    if algorithm.segment_returns:
        assert rows.packing is not None, "a rule of the settings"
        given["sequences"] = rows.packing.segments
    of_tokens = _at_tokens(rows, rewards, given["sequences"]) - penalty
    estimate: AdvantageEstimate = call(estimator.function, given, rewards=of_tokens)
    if not estimator.needs_values:
        estimate = AdvantageEstimate(estimate.advantages)
    elif algorithm.whiten:
        estimate = estimate._replace(advantages=whiten(estimate.advantages, mask))
    total = trajectory_totals(estimate.advantages, mask, sequences, rewards.size)
    return estimate, total / jnp.maximum(lengths, 1)


def _parts(
    loss: LossConfig,
    batch: TrainBatch,
    rewards: Float[Array, " trajectories"],
    lengths: Float[Array, " trajectories"],
) -> dict[str, Float[Array, "trajectories K"] | tuple[float, ...]]:
    """Returns the scores by each part of the reward, with the weights; of one part the rewards."""
    if not loss.part_weights:
        return {"parts": rewards[:, None], "part_weights": (1.0,)}
    assert batch.parts is not None, "the reward has parts"
    columns = [
        shaping.without_unjudged(scores, lengths, loss.group_size) for scores in batch.parts.T
    ]
    return {"parts": jnp.stack(columns, axis=1), "part_weights": loss.part_weights}


def _at_tokens(
    rows: Rows, rewards: Float[Array, " trajectories"], ended: Sequences
) -> Float[Array, "B T"]:
    """Assigns rewards of turns to the ends of replies, and any other reward to the last token.

    Args:
      ended: numbers of the sequences, each at its last token; trajectories, or their segments.
    """
    mask, turns, rest = rows.completion_mask, rows.turn_rewards, rewards
    if turns is not None:
        rest = rewards - returns.of_turns(turns, mask, 1.0, rewards.size, rows.sequences)
    at_ends = jnp.where(is_last(mask, ended), to_tokens(rest, rows.sequences), 0.0)
    return at_ends if turns is None else at_ends + jnp.where(mask, turns, 0.0)


def _is_truncated(
    rows: Rows, lengths: Float[Array, " trajectories"], loss: LossConfig
) -> Bool[Array, " trajectories"]:
    """Finds the completions that have the maximum number of tokens and no end of sequence."""
    mask, sequences = rows.completion_mask, rows.sequences
    ended = is_last(mask, sequences) & jnp.isin(rows.tokens, jnp.array(loss.end_ids, jnp.int32))
    endings = trajectory_totals(ended.astype(jnp.float32), mask, sequences, lengths.size)
    return (lengths >= loss.max_completion_tokens) & (endings == 0)


def _kept(loss: LossConfig, judged: _Judged) -> Bool[Array, " trajectories"]:
    """Marks the trajectories in the loss."""
    algorithm, group_size = loss.algorithm, loss.group_size
    low, high = algorithm.group_mean_low, algorithm.group_mean_high
    filters = bool(algorithm.filtered_parts)
    means_of, spread_of = (
        (judged.outcomes, judged.outcomes) if filters else (judged.rewards, judged.compared)
    )
    kept = shaping.within_difficulty(means_of, group_size, low, high)
    if algorithm.mask_truncated:
        kept &= ~judged.is_truncated
    if algorithm.needs_spread:
        kept &= shaping.has_spread(spread_of, group_size)
    if algorithm.extremes:
        kept &= shaping.extremes(judged.rewards, judged.lengths, group_size, algorithm.extremes)
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
    rewards: Float[Array, " trajectories"], judged: _Judged, group_size: int
) -> Metrics:
    """Statistics of the rewards as they were judged, and of those that advantages compare.

    Trajectories without tokens could not be judged, and are not counted among the rewards; nor is a
    group of them alone counted among the groups.
    """
    lengths = judged.lengths
    counted = lengths > 0
    rewards = shaping.without_unjudged(rewards, lengths, rewards.size)
    groups = counted.reshape(-1, group_size).any(axis=1)
    spread = shaping.has_spread(judged.compared, group_size)[::group_size]
    squares = jnp.square(jnp.where(counted, centered(rewards), 0.0))
    return {
        "reward_mean": rewards.mean(),
        "reward_std": jnp.sqrt(squares.mean() * (counted.size / jnp.maximum(counted.sum(), 1))),
        "reward_min": rewards.min(),
        "reward_max": rewards.max(),
        "groups_without_spread": 1 - spread.sum() / jnp.maximum(groups.sum(), 1),
        "completion_tokens_mean": lengths.mean(),
        "completion_tokens_max": lengths.max(),
        "truncated_fraction": judged.is_truncated.mean(),
    }
