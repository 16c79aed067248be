"""Losses on pairs of completions, one of which is preferred."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rl_sync.algorithms.masking import Mask
from rl_sync.algorithms.sequences import (
    OfSequence,
    Sequences,
    is_last,
    to_tokens,
    trajectory_totals,
)


def dpo(
    chosen_logprobs: Float[Array, " P"],
    rejected_logprobs: Float[Array, " P"],
    chosen_ref_logprobs: Float[Array, " P"],
    rejected_ref_logprobs: Float[Array, " P"],
    temperature: float,
) -> Float[Array, " P"]:
    """−log σ(β · ((log π − log π_ref)(chosen) − (log π − log π_ref)(rejected))) (DPO,
    arXiv:2305.18290, eq. 7).

    Args:
      chosen_logprobs, and the other logprobs: sums over a completion's tokens; P pairs.
      temperature: β.
    """
    chosen = chosen_logprobs - chosen_ref_logprobs
    rejected = rejected_logprobs - rejected_ref_logprobs
    return -jax.nn.log_sigmoid(temperature * (chosen - rejected))


def bradley_terry(
    chosen_scores: Float[Array, " P"],
    rejected_scores: Float[Array, " P"],
    margins: Float[Array, " P"],
) -> Float[Array, " P"]:
    """−log σ(r(chosen) − r(rejected) − m): the negative log-likelihood of a preference under the
    model of Bradley and Terry (1952), as in arXiv:2203.02155, eq. 1; with the margin m of
    arXiv:2307.09288, eq. 2.

    Args:
      chosen_scores, rejected_scores: r, for P pairs.
      margins: m, the margin by which a pair's chosen completion should be better; 0 for none.
    """
    return -jax.nn.log_sigmoid(chosen_scores - rejected_scores - margins)


def dpo_of_groups(
    logprobs: Float[Array, "B T"],
    ref_logprobs: Float[Array, "B T"],
    advantages: OfSequence,
    mask: Mask,
    preference_temperature: float,
    group_size: int,
    sequence_count: int,
    sequences: Sequences = None,
) -> Float[Array, "B T"]:
    """`dpo` for the pair in each group. The loss of a pair, times the group's size, is placed at
    the last token of the chosen trajectory, so that `sequence_sum_mean` makes the mean over groups.

    Args:
      advantages: positive for a group's chosen trajectory, negative for the rejected one; a group
        has one of each or neither.
      preference_temperature: β.
      group_size: number of trajectories of a group, all of which are present.
      sequence_count: number of trajectories present; ignored if each row holds one.
    """
    if sequences is not None:
        # Renumbered, so that the first one present gets the number 0.
        first = jnp.where(sequences < 0, jnp.iinfo(sequences.dtype).max, sequences).min()
        sequences = jnp.where(sequences < 0, -1, sequences - first)
    last = is_last(mask, sequences)

    def of_groups(values: Float[Array, "B T"], picked: Array) -> Float[Array, " groups"]:
        masked = jnp.where(picked, values, 0.0)
        of_trajectories = trajectory_totals(masked, mask, sequences, sequence_count)
        return of_trajectories.reshape(-1, group_size).sum(axis=1)

    chosen, rejected = advantages > 0, advantages < 0
    pairs = dpo(
        chosen_logprobs=of_groups(logprobs, chosen),
        rejected_logprobs=of_groups(logprobs, rejected),
        chosen_ref_logprobs=of_groups(ref_logprobs, chosen),
        rejected_ref_logprobs=of_groups(ref_logprobs, rejected),
        temperature=preference_temperature,
    )
    of_trajectories = jnp.repeat(group_size * pairs, group_size)
    return jnp.where(last & chosen, to_tokens(of_trajectories, sequences), 0.0)
