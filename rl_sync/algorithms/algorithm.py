"""An algorithm as a record: the pieces that it is made of, and their numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rl_sync.algorithms.pieces import (
    ADVANTAGES,
    AGGREGATIONS,
    CORRECTIONS,
    KL_ESTIMATORS,
    LOSSES,
    PROXIMAL,
)
from rl_sync.algorithms.screening import KEEPS, UNBOUNDED, Screening
from rl_sync.spelling import hint

KL_PLACES = ("loss", "reward")
_LOOSEST_BOUND = 10.0


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """`config.algorithm`: what a trainer step minimizes.

    Attributes:
      name: of the composition in `named` that this one was made from.
      advantage: one of `ADVANTAGES`.
      loss: one of `LOSSES`.
      proximal: the policy that the loss's ratio is taken to, and that clipping holds the update
        close to: `behavior`, the one that drew the tokens; `start`, that of the trainer step's
        start, which costs a forward pass where a step has several updates; `interpolated`, an
        estimate of that without one (`proximal`).
      correction: which of `CORRECTIONS` weigh the loss, joined by
        commas; empty for none. They compare the proximal policy with the behavior policy; where
        these are one, the current policy with it.
      aggregation: one of `AGGREGATIONS`: how the loss of tokens is reduced (`aggregation`).
      discount: γ of advantage=gae, n_step and reinforce_pp.
      gae_lambda: λ of advantage=gae.
      n_steps: n of advantage=n_step, in tokens.
      whiten: whether advantages from values are whitened over the tokens of the batch.
      clip_low, clip_high: ε below and above. Of the ratio; of its logarithm for gmpo; of the
        token's probability for dppo.
      dual_clip: c of ppo_clip; 0 for none.
      positive_temperature, negative_temperature: τ of sapo where A > 0, and elsewhere.
      mirror_temperature: τ of opmd.
      preference_temperature: β of dpo.
      weight_limit: the most that a truncated weight counts; also c of dppo.
      token_low, token_high: ratios that token_mask lets pass.
      sequence_low, sequence_high: products of ratios that sequence_rejection lets pass.
      geometric_low, geometric_high: their geometric means that geometric_rejection lets pass.
      second_moment: the greatest mean of (log ratio)² for the correction of that name.
      negative_drift: the greatest mean of −log ratio for negative_sequence_mask.
      kl_coefficient: weight of the KL divergence from the reference model, at the start; 0 for no
        reference.
      kl_target: the divergence, in nats a token, that the weight adapts to from step to step; 0 for
        a weight that stays.
      kl_horizon_steps: trainer steps in which that may change the weight by 20 %.
      kl_estimator: one of `KL_ESTIMATORS`.
      kl_place: `loss` adds it to the loss, `reward` takes that of the behavior policy from the
        reward.
      refresh_reference_steps: trainer steps after which the policy becomes the reference model,
        again and again; 0 for the policy that RL began with.
      entropy_coefficient: weight of the entropy, which is taken from the loss.
      expert_rows: demonstrations of the task that a trainer step imitates beside its rollouts; 0
        for none.
      expert_coefficient: μ, the weight of their loss beside the (1 − μ) of all that rollouts add
        (`losses.mixed`).
      overlong_tokens: how many of the most tokens of a completion are the margin of the soft
        overlong penalty; 0 for no penalty.
      mask_truncated: whether completions that were cut at the most tokens are left out of the loss.
      need_spread: whether groups of equal rewards are left out of it.
      group_mean_low, group_mean_high: groups whose mean reward is outside are left out of it.
      max_attempts: how many prompts are tried for a place in a batch until one makes a group that
        need_spread, group_mean_low and group_mean_high do not leave out, by its rewards as they
        were judged; the last one is taken as it is. 1 for no other than the place's own.
      over_sampling: groups that are generated for a trainer step over those that it trains on; 1
        for no more than these.
      keep: one of `KEEPS`: which of them it trains on (`screening.choose`).
      extremes: how many trajectories of a group, half of them the best and half the worst, stay in
        it; 0 for all.
      logprob_gap_alarm: the mean distance, in nats, between the trainer's and the explorers'
        logprobs of the same tokens above which the trainer warns; 0 for no alarm.
      allow_unsafe: whether a composition that does not bear stale data may run where there are.

    Raises:
      ValueError: an unknown name, a value outside its range, or pieces that do not fit.
    """

    name: str
    advantage: str
    loss: str
    proximal: str
    correction: str
    aggregation: str
    discount: float
    gae_lambda: float
    n_steps: int
    whiten: bool
    clip_low: float
    clip_high: float
    dual_clip: float
    positive_temperature: float
    negative_temperature: float
    mirror_temperature: float
    preference_temperature: float
    weight_limit: float
    token_low: float
    token_high: float
    sequence_low: float
    sequence_high: float
    geometric_low: float
    geometric_high: float
    second_moment: float
    negative_drift: float
    kl_coefficient: float
    kl_target: float
    kl_horizon_steps: float
    kl_estimator: str
    kl_place: str
    refresh_reference_steps: int
    entropy_coefficient: float
    expert_rows: int
    expert_coefficient: float
    overlong_tokens: int
    mask_truncated: bool
    need_spread: bool
    group_mean_low: float
    group_mean_high: float
    max_attempts: int
    over_sampling: float
    keep: str
    extremes: int
    logprob_gap_alarm: float
    allow_unsafe: bool

    def __post_init__(self) -> None:
        self._check_names()
        self._check_numbers()
        self._check_pieces()

    @property
    def corrections(self) -> tuple[str, ...]:
        """The names in `correction`."""
        return tuple(name.strip() for name in self.correction.split(",") if name.strip())

    @property
    def truncations(self) -> tuple[str, ...]:
        """The corrections that weigh by the ratio itself, rather than by 0 or 1."""
        return tuple(name for name in self.corrections if CORRECTIONS[name].is_ratio)

    @property
    def looks_ahead(self) -> bool:
        """Whether a correction looks at all tokens of an update before it."""
        return any(CORRECTIONS[name].of_update for name in self.corrections)

    @property
    def imitates(self) -> bool:
        """Whether a run trains on the task's demonstrations, and generates nothing."""
        return ADVANTAGES[self.advantage].imitates

    @property
    def needs_reference(self) -> bool:
        """Whether there is a reference model."""
        return self.kl_coefficient > 0 or LOSSES[self.loss].needs_reference

    @property
    def needs_baselines(self) -> bool:
        """Whether a greedy completion is generated beside each group."""
        return ADVANTAGES[self.advantage].needs_baselines

    @property
    def screening(self) -> Screening:
        """The rule by which groups are replaced before they reach the replay buffer."""
        means = self.group_mean_low, self.group_mean_high
        return Screening(self.need_spread, *means, self.max_attempts)

    @property
    def compares_groups(self) -> bool:
        """Whether advantages are what trajectories of one group have over each other."""
        return ADVANTAGES[self.advantage].compares_groups

    @property
    def needs_values(self) -> bool:
        """Whether advantages are taken from a critic's values."""
        return ADVANTAGES[self.advantage].needs_values

    @property
    def adapts_kl(self) -> bool:
        """Whether the weight of the divergence from the reference model changes."""
        return self.kl_coefficient > 0 and self.kl_target > 0

    def danger(self) -> str | None:
        """The reason why the composition does not bear stale data; None where it does.

        Something has to bound what a token can do whose probability has changed since it was drawn.
        """
        loss = LOSSES[self.loss]
        if loss.clips and self.clip_high > _LOOSEST_BOUND:
            return (
                f"algorithm.clip_high={self.clip_high:g} leaves the ratio as good as unclipped: a"
                " token that became much likelier since it was drawn counts as often. Use at most"
                f" {_LOOSEST_BOUND:g}"
            )
        if self.corrections or ADVANTAGES[self.advantage].is_positive:
            return None
        if self.proximal != "behavior":
            return (
                f"algorithm.proximal={self.proximal} without a correction takes no notice of the"
                " policy that drew the tokens. Use algorithm.correction=token_truncation"
            )
        if not loss.has_ratio:
            return (
                f"algorithm.loss={self.loss} without a correction pushes bad tokens down without"
                " end, however unlikely they have become since they were drawn. Use"
                " algorithm.correction=token_truncation"
            )
        return None

    def _check_names(self) -> None:
        for field, names in (
            ("advantage", ADVANTAGES),
            ("loss", LOSSES),
            ("proximal", PROXIMAL),
            ("aggregation", AGGREGATIONS),
            ("kl_estimator", KL_ESTIMATORS),
            ("kl_place", KL_PLACES),
            ("keep", KEEPS),
        ):
            check_name(field, getattr(self, field), names)
        for correction in self.corrections:
            check_name("correction", correction, CORRECTIONS)

    def _check_numbers(self) -> None:
        for field in (
            "dual_clip",
            "kl_coefficient",
            "kl_target",
            "refresh_reference_steps",
            "entropy_coefficient",
            "expert_rows",
            "overlong_tokens",
            "extremes",
            "logprob_gap_alarm",
        ):
            if getattr(self, field) < 0:
                raise ValueError(f"algorithm.{field}={getattr(self, field)} must not be negative.")
        for field in (
            "clip_low",
            "clip_high",
            "positive_temperature",
            "negative_temperature",
            "mirror_temperature",
            "preference_temperature",
            "weight_limit",
            "second_moment",
            "negative_drift",
            "kl_horizon_steps",
            "n_steps",
        ):
            if getattr(self, field) <= 0:
                raise ValueError(f"algorithm.{field}={getattr(self, field)} must be above 0.")
        mixes = self.expert_rows > 0
        if mixes != (self.expert_coefficient > 0) or not 0 <= self.expert_coefficient <= 1:
            raise ValueError(
                f"algorithm.expert_coefficient={self.expert_coefficient:g} is the weight, from 0 to"
                f" 1, of algorithm.expert_rows={self.expert_rows} demonstrations a step: set both,"
                " or both to 0."
            )
        if self.clip_low > 1:
            raise ValueError(f"algorithm.clip_low={self.clip_low} must be at most 1.")
        if 0 < self.dual_clip <= 1:
            raise ValueError(
                f"algorithm.dual_clip={self.dual_clip} must be above 1, or 0 for none."
            )
        if not 0 < self.discount <= 1:
            raise ValueError(f"algorithm.discount={self.discount} must be in (0, 1].")
        if not 0 <= self.gae_lambda <= 1:
            raise ValueError(f"algorithm.gae_lambda={self.gae_lambda} must be in [0, 1].")
        for field in ("token", "sequence", "geometric"):
            low, high = getattr(self, f"{field}_low"), getattr(self, f"{field}_high")
            if not 0 < low <= 1 <= high:
                raise ValueError(
                    f"algorithm.{field}_low={low} and algorithm.{field}_high={high} must be above"
                    " 0 and have 1, the ratio of equal policies, between them."
                )
        if self.max_attempts < 1:
            raise ValueError(
                f"algorithm.max_attempts={self.max_attempts} is how many prompts are tried for a"
                " place in a batch: it must be at least 1."
            )
        if self.over_sampling < 1:
            raise ValueError(
                f"algorithm.over_sampling={self.over_sampling:g} is how many groups are generated"
                " for each that is trained on: it must be at least 1."
            )
        if self.extremes % 2:
            raise ValueError(f"algorithm.extremes={self.extremes} must be even, or 0 for all.")
        if self.group_mean_low > self.group_mean_high:
            raise ValueError(
                f"algorithm.group_mean_low={self.group_mean_low} is above algorithm.group_mean_high"
                f"={self.group_mean_high}: no group would be left."
            )

    def _check_pieces(self) -> None:
        advantage, loss = ADVANTAGES[self.advantage], LOSSES[self.loss]
        if self.screening.replaces and not self.screening.refuses:
            raise ValueError(
                f"algorithm.max_attempts={self.max_attempts} has groups replaced that teach"
                " nothing, but no setting says which: use algorithm.need_spread=True, or"
                " algorithm.group_mean_low and algorithm.group_mean_high; or"
                " algorithm.max_attempts=1 to replace none."
            )
        if self.truncations and self.proximal == "behavior" and loss.has_ratio:
            raise ValueError(
                f"algorithm.correction={self.truncations[0]} weighs by the ratio that"
                f" algorithm.loss={self.loss} has in it already: with it use"
                " algorithm.proximal=start, or algorithm.loss=reinforce."
            )
        if len(self.truncations) > 1:
            raise ValueError(
                f"algorithm.correction={self.correction} weighs by the ratio twice: use one of"
                f" {' and '.join(self.truncations)}."
            )
        if self.looks_ahead and self.proximal != "start":
            raise ValueError(
                "algorithm.correction=second_moment is taken over all tokens of an update before"
                f" it, which needs algorithm.proximal=start, not {self.proximal}."
            )
        if self.imitates:
            self._check_imitation()
        if loss.of_pairs != advantage.of_pairs:
            raise ValueError(
                f"algorithm.loss={self.loss} with algorithm.advantage={self.advantage}: dpo"
                " compares the trajectories of a pair, which nothing else does. Use both"
                " algorithm.loss=dpo and algorithm.advantage=pair, or neither."
            )
        if self.kl_target and not self.kl_coefficient:
            raise ValueError(
                f"algorithm.kl_target={self.kl_target} has no weight to adapt: set"
                " algorithm.kl_coefficient to what it starts with, above 0."
            )
        if advantage.of_tokens and loss.of_trajectories:
            raise ValueError(
                f"algorithm.loss={self.loss} takes one advantage a trajectory, but"
                f" algorithm.advantage={self.advantage} makes one a token: use"
                " algorithm.advantage=reinforce_pp_baseline, or dr_grpo."
            )

    def _check_imitation(self) -> None:
        """Refuses what needs tokens that a policy drew, or rewards."""
        expected = {
            "loss": "reinforce",
            "correction": "",
            "expert_rows": 0,
            "need_spread": False,
            "group_mean_low": -UNBOUNDED,
            "group_mean_high": UNBOUNDED,
            "extremes": 0,
        }
        for field, value in expected.items():
            if getattr(self, field) != value:
                raise ValueError(
                    f"algorithm.{field}={getattr(self, field)!r} does not fit algorithm.advantage="
                    f"demonstration, which imitates what nobody has drawn or judged: it takes"
                    f" algorithm.{field}={value!r}."
                )


def check_name(field: str, value: str, names: Iterable[str]) -> None:
    """Raises ValueError with the nearest name unless the value is one of the names."""
    if value not in names:
        raise ValueError(
            f"algorithm.{field}={value!r} is not one of {', '.join(names)}{hint(value, names)}"
        )
