"""Hyperparameters of an algorithm: the pieces that it is made of, and their numbers."""

from __future__ import annotations

import dataclasses

from rl_sync.algorithms.pieces import (
    ADVANTAGES,
    AGGREGATIONS,
    CORRECTIONS,
    KL_ESTIMATORS,
    LOSSES,
    PROXIMAL,
    PUBLISHED_CORRECTIONS,
)
from rl_sync.algorithms.published import PUBLISHED
from rl_sync.algorithms.screening import KEEPS, UNBOUNDED, Screening
from rl_sync.setting import setting


@dataclasses.dataclass(frozen=True)
class Composition:
    """Names of pieces, their numbers, and what follows from them. The defaults make GRPO."""

    name: str = setting(
        "grpo",
        "Published algorithm, whose values the others have unless they are given.",
        choices=tuple(PUBLISHED),
        implied="grpo where no data get stale, else decoupled_ppo",
    )
    advantage: str = setting("grpo", "Estimator of advantages.", choices=tuple(ADVANTAGES))
    loss: str = setting("ppo_clip", "Loss of each token.", choices=tuple(LOSSES))
    proximal: str = setting(
        "behavior",
        "Denominator of the importance ratio, and centre of the clipping range."
        " `behavior` drew the tokens. `start` is that of the trainer step's start, which costs a"
        " forward pass where a step has several updates. `interpolated` estimates it without one.",
        choices=tuple(PROXIMAL),
    )
    correction: str = setting(
        "",
        "Importance-sampling corrections, comma-separated: weights of the loss by the ratio of the"
        " proximal policy to the behavior policy, or of the current one where proximal=behavior."
        f" Empty for none. There are {', '.join(CORRECTIONS)}; and, by their published names,"
        f" {', '.join(f'{a} ({b})' for a, b in PUBLISHED_CORRECTIONS.items())}.",
    )
    aggregation: str = setting(
        "sequence_mean", "Reduction of the loss of tokens.", choices=tuple(AGGREGATIONS)
    )
    discount: float = setting(
        1.0, "Discount γ of a token, in gae, n_step and reinforce_pp.", above=0, greatest=1
    )
    turn_discount: float = setting(
        1.0,
        "Discount of an episode's turn, in every advantage: rewards of later turns count for less."
        " 1 for none.",
        above=0,
        greatest=1,
    )
    gae_lambda: float = setting(
        0.95,
        "Weight λ of later tokens in gae: 0 for one step, 1 for the whole return.",
        least=0,
        greatest=1,
    )
    n_steps: int = setting(
        4, "Tokens until n_step takes the critic's value.", unit="tokens", least=1
    )
    whiten: bool = setting(
        True, "Whitens advantages from a critic's values over the tokens of the batch."
    )
    clip_low: float = setting(
        0.2,
        "Clip ε below: the farthest that the ratio falls before the loss bounds it; of its"
        " logarithm for gmpo, of the token's probability for dppo.",
        above=0,
        greatest=1,
    )
    clip_high: float = setting(
        0.2,
        "Clip ε above: the farthest that the ratio rises before the loss bounds it; of its"
        " logarithm for gmpo, of the token's probability for dppo.",
        above=0,
    )
    dual_clip: float = setting(
        0.0,
        "Dual clip c of ppo_clip, above 1: where A < 0 a token costs at most −cA; 0 for none.",
        least=0,
    )
    positive_temperature: float = setting(1.0, "Temperature τ of sapo's gate where A > 0.", above=0)
    negative_temperature: float = setting(
        1.05, "Temperature τ of sapo's gate where A ≤ 0.", above=0
    )
    mirror_temperature: float = setting(0.1, "Temperature τ of opmd.", above=0)
    preference_temperature: float = setting(0.1, "Temperature β of dpo.", above=0)
    weight_limit: float = setting(2.0, "Greatest weight of a truncation; c of dppo.", above=0)
    token_low: float = setting(0.5, "Least ratio in token_mask.", above=0, greatest=1)
    token_high: float = setting(5.0, "Greatest ratio in token_mask.", least=1)
    sequence_low: float = setting(
        0.5, "Least product of ratios in sequence_rejection.", above=0, greatest=1
    )
    sequence_high: float = setting(
        2.0, "Greatest product of ratios in sequence_rejection.", least=1
    )
    geometric_low: float = setting(
        0.99, "Least geometric mean of ratios in geometric_rejection.", above=0, greatest=1
    )
    geometric_high: float = setting(
        1.01, "Greatest geometric mean of ratios in geometric_rejection.", least=1
    )
    second_moment: float = setting(
        0.04, "Greatest mean of (log ratio)² that correction=second_moment leaves.", above=0
    )
    negative_drift: float = setting(
        0.05, "Greatest mean of −log ratio of a bad sequence in negative_sequence_mask.", above=0
    )
    kl_coefficient: float = setting(
        0.001, "Weight of the KL divergence from the reference model; 0 for no such model.", least=0
    )
    kl_target: float = setting(
        0.0,
        "Divergence that kl_coefficient adapts to from step to step; 0 for a weight that stays.",
        unit="nats a token",
        least=0,
    )
    kl_horizon_steps: float = setting(
        100.0,
        "Time in which kl_target may change the weight by 20 %.",
        unit="trainer steps",
        above=0,
    )
    kl_estimator: str = setting(
        "k3", "Estimator of the KL divergence at a token.", choices=tuple(KL_ESTIMATORS)
    )
    kl_place: str = setting(
        "loss",
        "Place of the KL divergence. `loss` adds it to the loss; `reward` subtracts that of the"
        " behavior policy from the reward.",
        choices=("loss", "reward"),
    )
    refresh_reference_steps: int = setting(
        0,
        "Interval at which the policy becomes the reference model; 0 for the policy that RL began"
        " with.",
        unit="trainer steps",
        least=0,
    )
    entropy_coefficient: float = setting(
        0.0, "Weight of the entropy, which is subtracted from the loss.", least=0
    )
    demonstration_rows: int = setting(
        0,
        "Demonstrations that a trainer step learns from beside its rollouts; 0 for none.",
        least=0,
    )
    demonstration_coefficient: float = setting(
        0.0,
        "Weight μ of the demonstrations' loss, beside 1 − μ of the rollouts'.",
        least=0,
        greatest=1,
    )
    overlong_tokens: int = setting(
        0,
        "Margin of the soft overlong penalty, below the most tokens of a completion; 0 for none.",
        unit="tokens",
        least=0,
    )
    mask_truncated: bool = setting(
        False, "Leaves completions that were cut at the most tokens out of the loss."
    )
    filter_zero_variance: bool = setting(False, "Leaves groups of equal rewards out of the loss.")
    group_mean_low: float = setting(
        -UNBOUNDED, "Mean reward below which groups are left out of the loss."
    )
    group_mean_high: float = setting(
        UNBOUNDED, "Mean reward above which groups are left out of the loss."
    )
    max_attempts: int = setting(
        1,
        "Prompts that are tried for a place in a batch until one makes a group that"
        " filter_zero_variance, group_mean_low and group_mean_high do not leave out, by its rewards"
        " as they were judged (dynamic sampling)."
        " The last one is taken as it is.",
        least=1,
    )
    over_sampling: float = setting(
        1.0, "Groups that are generated for each one that is trained on.", least=1
    )
    keep: str = setting(
        "first",
        "Groups of over_sampling that are trained on: the `first` that teach anything, or the"
        " `best`, whose rewards have the greatest variance.",
        choices=KEEPS,
    )
    extremes: int = setting(
        0,
        "Trajectories that stay of a group, half the best and half the worst; 0 for all.",
        least=0,
    )
    logprob_gap_alarm: float = setting(
        0.2,
        "Mean distance between the trainer's and the explorers' logprobs of the same tokens above"
        " which the trainer warns; 0 for no alarm.",
        unit="nats",
        least=0,
        free="always",
    )
    allow_unsafe: bool = setting(
        False,
        "Lets an algorithm run that does not bear stale data where there are some.",
        free="always",
    )

    @property
    def corrections(self) -> tuple[str, ...]:
        """The names in `correction`, in place of published ones those of `CORRECTIONS`."""
        names = (name.strip() for name in self.correction.split(",") if name.strip())
        return tuple(PUBLISHED_CORRECTIONS.get(name, name) for name in names)

    @property
    def truncations(self) -> tuple[str, ...]:
        """The corrections that weigh by the ratio itself, rather than by 0 or 1."""
        return tuple(name for name in self.corrections if CORRECTIONS[name].is_ratio)

    @property
    def looks_ahead(self) -> bool:
        """Says whether a correction looks at all tokens of an update before it."""
        return any(CORRECTIONS[name].of_update for name in self.corrections)

    @property
    def demonstrations_only(self) -> bool:
        """Says whether a run trains on the task's demonstrations, and generates nothing."""
        return ADVANTAGES[self.advantage].of_demonstrations

    @property
    def scores(self) -> bool:
        """Says whether a run trains a reward model, which scores completions, not a policy."""
        return LOSSES[self.loss].of_scores

    @property
    def generates(self) -> bool:
        """Says whether a run generates completions, rather than train on those of the data."""
        return not (self.demonstrations_only or self.scores)

    @property
    def learning(self) -> str:
        """One word for what the trainer steps do."""
        if self.scores:
            return "training"
        return "SFT" if self.demonstrations_only else "RL"

    @property
    def needs_reference(self) -> bool:
        """Says whether there is a reference model."""
        return self.kl_coefficient > 0 or LOSSES[self.loss].needs_reference

    @property
    def needs_baselines(self) -> bool:
        """Says whether a greedy completion is generated beside each group."""
        return ADVANTAGES[self.advantage].needs_baselines

    @property
    def screening(self) -> Screening:
        """The rule by which groups are replaced before they reach the replay buffer."""
        means = self.group_mean_low, self.group_mean_high
        return Screening(self.filter_zero_variance, *means, self.max_attempts)

    @property
    def selects_groups(self) -> bool:
        """Says whether groups are generated that no step trains on, because of their rewards."""
        return self.over_sampling > 1 or self.screening.replaces

    @property
    def compares_groups(self) -> bool:
        """Says whether advantages compare the trajectories of a group."""
        return ADVANTAGES[self.advantage].compares_groups

    @property
    def needs_values(self) -> bool:
        """Says whether advantages are taken from a critic's values."""
        return ADVANTAGES[self.advantage].needs_values

    @property
    def adapts_kl(self) -> bool:
        """Says whether the weight of the divergence from the reference model changes."""
        return self.kl_coefficient > 0 and self.kl_target > 0
