"""Tables of the pieces that an algorithm is made of: one line a piece, by its name in a config.

A piece is a pure function, which gets its arguments by their names (`call`): settings of
`Algorithm`, such as `clip_low`, and what is known of a batch (`Experience` and `Totals` of
`rl_sync.learning`), such as `behavior_logprobs`. So its arguments say what it needs. A new piece is
a function and a line here.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rl_sync.algorithms import (
    advantages,
    aggregation,
    corrections,
    kl,
    losses,
    preference,
    proximal,
    returns,
    sequence_losses,
)

Function = Callable[..., Any]


def takes(function: Function, name: str) -> bool:
    """Says whether a function has an argument of that name."""
    return name in inspect.signature(function).parameters


def call(function: Function, given: Mapping[str, Any], **more: Any) -> Any:
    """Calls a function with those of the given values that it has arguments for.

    Args:
      more: values that go before given ones of the same name.
    """
    values = {**given, **more}
    names = inspect.signature(function).parameters
    return function(**{name: values[name] for name in names if name in values})


@dataclasses.dataclass(frozen=True)
class Advantage:
    """An estimator of advantages.

    Attributes:
      function: makes one advantage a trajectory from `rewards`, of `lengths` in tokens.
      of_tokens: whether it makes an `Estimate` instead, from `rewards` that stand at tokens.
      of_pairs: whether it picks a pair of each group, for a loss of pairs.
      is_positive: whether no advantage is below 0, so that no token is pushed down.
      of_demonstrations: whether the trajectories are demonstrations, which nobody has drawn or
        judged.
      of_preferences: whether they are pairs of the data, of which one was preferred.
    """

    function: Function
    of_tokens: bool = False
    of_pairs: bool = False
    is_positive: bool = False
    of_demonstrations: bool = False
    of_preferences: bool = False

    @property
    def compares_groups(self) -> bool:
        """Says whether advantages compare the trajectories of a group."""
        return takes(self.function, "group_size")

    @property
    def needs_values(self) -> bool:
        """Says whether advantages are taken from a critic's values, with returns for it."""
        return takes(self.function, "values")

    @property
    def needs_baselines(self) -> bool:
        """Says whether a greedy completion of the prompt is what rewards are compared with."""
        return takes(self.function, "baselines")


@dataclasses.dataclass(frozen=True)
class Loss:
    """A policy loss.

    Attributes:
      function: makes the loss of each token from `logprobs`, that of the proximal policy being
        `old_logprobs`.
      clipped: tells which tokens the loss bounds; None where it bounds none.
      of_trajectories: whether it takes one advantage a trajectory.
      of_pairs: whether it compares the trajectories of a pair.
      of_scores: whether it is one of the scores of a reward model, not of a policy; see
        `rl_sync.learning.pairs`.
      has_ratio: whether it has the ratio to another policy in it, which bounds what becomes of a
        stale token.
    """

    function: Function
    clipped: Function | None = None
    of_trajectories: bool = False
    of_pairs: bool = False
    of_scores: bool = False
    has_ratio: bool = True

    @property
    def needs_reference(self) -> bool:
        """Says whether the loss compares the policy with the reference model."""
        return takes(self.function, "ref_logprobs")

    @property
    def clips(self) -> bool:
        """Says whether `clip_high` bounds the ratio, or what stands for it."""
        return takes(self.function, "clip_high")


@dataclasses.dataclass(frozen=True)
class Correction:
    """A weight for tokens that another, older policy drew.

    Attributes:
      function: compares `logprobs` with `behavior_logprobs`, token by token.
      is_ratio: whether it weighs by the ratio itself, rather than by 0 or 1.
      of_update: whether it looks at all tokens of an update beforehand.
    """

    function: Function
    is_ratio: bool = False
    of_update: bool = False


ADVANTAGES = {
    "grpo": Advantage(advantages.grpo),
    "dr_grpo": Advantage(advantages.dr_grpo),
    "rloo": Advantage(advantages.rloo),
    "opo": Advantage(advantages.opo),
    "reinforce_pp": Advantage(returns.reinforce_pp, of_tokens=True),
    "reinforce_pp_baseline": Advantage(advantages.reinforce_pp_baseline),
    "remax": Advantage(returns.remax, of_tokens=True),
    "best": Advantage(advantages.best, is_positive=True),
    "pair": Advantage(advantages.pair, of_pairs=True),
    "demonstration": Advantage(advantages.demonstration, is_positive=True, of_demonstrations=True),
    "preference": Advantage(advantages.preference, of_pairs=True, of_preferences=True),
    "gae": Advantage(returns.gae, of_tokens=True),
    "n_step": Advantage(returns.n_step, of_tokens=True),
}

LOSSES = {
    "ppo_clip": Loss(losses.ppo_clip, clipped=losses.is_clipped),
    "cispo": Loss(losses.cispo, clipped=losses.is_outside),
    "gspo": Loss(sequence_losses.gspo, clipped=sequence_losses.is_gspo_clipped),
    "sapo": Loss(losses.sapo),
    "gmpo": Loss(
        sequence_losses.gmpo, clipped=sequence_losses.is_gmpo_clipped, of_trajectories=True
    ),
    "dppo": Loss(losses.dppo, clipped=losses.has_left),
    "reinforce": Loss(losses.reinforce, has_ratio=False),
    "opmd": Loss(sequence_losses.opmd),
    "topr": Loss(sequence_losses.topr, of_trajectories=True),
    "dpo": Loss(preference.dpo_of_groups, of_pairs=True),
    "bradley_terry": Loss(preference.bradley_terry, of_pairs=True, of_scores=True, has_ratio=False),
}

PROXIMAL: dict[str, Function] = {
    "behavior": proximal.behavior,
    "start": proximal.start,
    "interpolated": proximal.interpolated,
}

CORRECTIONS = {
    "token_truncation": Correction(corrections.truncated_token_weights, is_ratio=True),
    "sequence_truncation": Correction(corrections.truncated_sequence_weights, is_ratio=True),
    "token_mask": Correction(corrections.token_mask),
    "sequence_rejection": Correction(corrections.sequence_rejection),
    "geometric_rejection": Correction(corrections.geometric_rejection),
    "second_moment": Correction(corrections.second_moment_mask, of_update=True),
    "negative_sequence_mask": Correction(corrections.negative_sequence_mask),
}

PUBLISHED_CORRECTIONS = {
    "tis": "token_truncation",
    "icepop": "token_mask",
    "mis": "sequence_rejection",
}
"""By the name that a correction is published under: truncated importance sampling, IcePop, masked
importance sampling."""

AGGREGATIONS: dict[str, Function] = {
    "token_mean": aggregation.token_mean,
    "sequence_mean": aggregation.sequence_mean,
    "sequence_sum_mean": aggregation.sequence_sum_mean,
    "constant_mean": aggregation.constant_mean,
}

KL_ESTIMATORS: dict[str, Function] = {"k1": kl.k1, "k2": kl.k2, "k3": kl.k3, "abs": kl.absolute}
