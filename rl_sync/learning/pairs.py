"""Preference pairs: the loss and the metrics of a reward model.

A group is a pair: the chosen trajectory, then the rejected one. Letters in shapes: B rows, T
positions.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.algorithms.masking import centered, mean
from rl_sync.algorithms.preference import bradley_terry
from rl_sync.algorithms.sequences import (
    OfSequence,
    Sequences,
    is_last,
    to_tokens,
    trajectory_totals,
)
from rl_sync.learning.learning_settings import PAIR
from rl_sync.learning.objective import Metrics
from rl_sync.types import Rows, TrainBatch


class Pairs(NamedTuple):
    """Pairs, and the margins between their scores.

    Attributes:
      rows: the tokens; the score of a trajectory is at its last token.
      margins: margin of each pair, at the chosen trajectory; 0 at the rejected one.
    """

    rows: Rows
    margins: OfSequence


def prepare(batch: TrainBatch) -> tuple[Pairs, Metrics]:
    """Makes the pairs of a batch whose rewards are their margins, and metrics of the batch."""
    rows, mask = batch.rows, batch.rows.completion_mask
    lengths = trajectory_totals(jnp.ones(mask.shape), mask, rows.sequences, batch.rewards.size)
    metrics = {
        "completion_tokens_mean": lengths.mean(),
        "completion_tokens_max": lengths.max(),
        "chosen_tokens_mean": lengths[::PAIR].mean(),
        "rejected_tokens_mean": lengths[1::PAIR].mean(),
        "staleness_mean": jnp.zeros(()),
        "staleness_max": jnp.zeros(()),
    }
    return Pairs(rows, to_tokens(batch.rewards, rows.sequences)), metrics


def pair_loss(
    scalars: Float[Array, "B T"], pairs: Pairs, pair_count: int
) -> tuple[Float[Array, ""], Metrics]:
    """Computes the mean of `bradley_terry` over the pairs of an update.

    Every result is a sum divided by constants of the update, so the results of parts add up.

    Args:
      scalars: score of each prefix.
      pairs: all rows of the update or some, but always both trajectories of a pair.
      pair_count: number of pairs of the whole update.
    """
    rows = pairs.rows
    here = PAIR * pair_count if rows.packing is not None else rows.tokens.shape[0]
    sequences = _renumbered(rows.sequences)
    last = is_last(rows.completion_mask, sequences)

    def of_pairs(values: Array) -> tuple[Float[Array, " P"], Float[Array, " P"]]:
        values = jnp.broadcast_to(values, last.shape)
        both = trajectory_totals(values, last, sequences, here).reshape(-1, PAIR)
        return both[:, 0], both[:, 1]

    chosen, rejected = of_pairs(scalars)
    loss = bradley_terry(chosen, rejected, of_pairs(pairs.margins)[0]).sum() / pair_count
    return loss, {"loss": loss} | _metrics(
        jax.lax.stop_gradient(chosen), jax.lax.stop_gradient(rejected), pair_count
    )


def _renumbered(sequences: Sequences) -> Int[Array, "B T"] | None:
    """Renumbers trajectories, so that the first one present gets the number 0."""
    if sequences is None:
        return None
    first = jnp.where(sequences < 0, jnp.iinfo(sequences.dtype).max, sequences).min()
    return jnp.where(sequences < 0, -1, sequences - first)


def _metrics(chosen: Float[Array, " P"], rejected: Float[Array, " P"], pair_count: int) -> Metrics:
    gap = chosen - rejected
    right = jnp.where(gap == 0, 0.5, gap > 0)  # A pair with equal scores counts half.

    return {
        "pair_accuracy": right.sum() / pair_count,
        "score_gap": gap.sum() / pair_count,
    }


def score_metrics(scalars: Float[Array, "B T"], rows: Rows) -> Metrics:
    """Computes the mean and the standard deviation of all scores of a batch.

    Args:
      scalars: score of each prefix, as `Pairs.rows` has them.
      rows: all rows of the batch.
    """
    last = is_last(rows.completion_mask, rows.sequences)
    deviations = jnp.where(last, centered(scalars, last), 0.0)
    spread = jnp.sqrt(jnp.square(deviations).sum() / jnp.maximum(last.sum(), 1))
    return {"reward_mean": mean(scalars, last).reshape(()), "reward_std": spread}
