"""An algorithm: a composition whose pieces fit, with the reason why it may not bear stale data."""

from __future__ import annotations

import dataclasses

from rl_sync.algorithms.composition import Composition
from rl_sync.algorithms.pieces import ADVANTAGES, CORRECTIONS, LOSSES, PUBLISHED_CORRECTIONS
from rl_sync.algorithms.screening import UNBOUNDED
from rl_sync.setting import check
from rl_sync.spelling import require_one_of

_LOOSEST_BOUND = 10.0


@dataclasses.dataclass(frozen=True)
class Algorithm(Composition):
    """`config.algorithm`: the loss that a trainer step minimizes. The defaults make GRPO.

    Raises:
      ValueError: an unknown name, a value outside its bounds, or pieces that do not fit.
    """

    def __post_init__(self) -> None:
        check(self, "algorithm")
        for name in self.corrections:
            require_one_of("algorithm.correction", name, [*CORRECTIONS, *PUBLISHED_CORRECTIONS])
        self._check_numbers()
        self._check_pieces()

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
        if self.corrections or ADVANTAGES[self.advantage].is_positive or self.scores:
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

    def _check_numbers(self) -> None:
        if (self.demonstration_rows > 0) != (self.demonstration_coefficient > 0):
            raise ValueError(
                f"algorithm.demonstration_coefficient={self.demonstration_coefficient:g} is the"
                f" weight of algorithm.demonstration_rows={self.demonstration_rows}"
                " demonstrations a step: set both, or both to 0."
            )
        if 0 < self.dual_clip <= 1:
            raise ValueError(
                f"algorithm.dual_clip={self.dual_clip} must be above 1, or 0 for none."
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
                " nothing, but no setting says which: use algorithm.filter_zero_variance=True, or"
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
        if self.demonstrations_only:
            self._check_data("reinforce", "whose completions nobody has drawn or judged")
        if advantage.of_preferences != loss.of_scores:
            raise ValueError(
                f"algorithm.loss={self.loss} with algorithm.advantage={self.advantage}: a reward"
                " model learns from preferences, and nothing else does. Use both"
                " algorithm.loss=bradley_terry and algorithm.advantage=preference, or neither."
            )
        if self.scores:
            self._check_data("bradley_terry", "whose completions nobody has drawn")
            if self.kl_coefficient or self.entropy_coefficient:
                raise ValueError(
                    "algorithm.kl_coefficient and algorithm.entropy_coefficient must be 0 with"
                    " algorithm.loss=bradley_terry: a reward model has no probabilities."
                )
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

    def _check_data(self, loss: str, reason: str) -> None:
        """Refuses what needs tokens that a policy drew, or rewards."""
        expected = {
            "loss": loss,
            "correction": "",
            "demonstration_rows": 0,
            "filter_zero_variance": False,
            "group_mean_low": -UNBOUNDED,
            "group_mean_high": UNBOUNDED,
            "extremes": 0,
        }
        for field, value in expected.items():
            if getattr(self, field) != value:
                raise ValueError(
                    f"algorithm.{field}={getattr(self, field)!r} does not fit algorithm.advantage="
                    f"{self.advantage}, {reason}: it takes algorithm.{field}={value!r}."
                )
