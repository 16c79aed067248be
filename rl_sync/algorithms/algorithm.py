"""Algorithms: the tables of their pieces, one line per piece, and their hyperparameters.

A piece is a pure function that gets its arguments by name (`call`): settings of `Algorithm`, such
as `clip_low`, and data of a batch (`BatchExperience` and `Totals` of `rl_sync.learning`), such as
`behavior_logprobs`. So its signature says what it needs. A new piece is a function and a line here.
The module of a piece is imported when the piece is first used, so that settings do not import JAX.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rl_sync.algorithms.published import PUBLISHED
from rl_sync.algorithms.screening import KEEPS, UNBOUNDED, Screening
from rl_sync.setting import check, setting

Function = Callable[..., Any]


def takes(function: Function, name: str) -> bool:
    """Says whether a function has an argument of that name."""
    return name in inspect.signature(function).parameters


def call(function: Function, given: Mapping[str, Any], **more: Any) -> Any:
    """Calls a function with the given values that its arguments name.

    Args:
      more: values that override given ones of the same name.
    """
    values = {**given, **more}
    names = inspect.signature(function).parameters
    return function(**{name: values[name] for name in names if name in values})


@dataclasses.dataclass(frozen=True)
class AlgorithmPiece:
    """A piece of an algorithm.

    Attributes:
      path: module in `rl_sync.algorithms` and name of the function, with a dot between them.
    """

    path: str

    @functools.cached_property
    def function(self) -> Function:
        """The function, imported at the first use."""
        module, name = self.path.split(".")
        return getattr(importlib.import_module(f"rl_sync.algorithms.{module}"), name)


@dataclasses.dataclass(frozen=True)
class Advantage(AlgorithmPiece):
    """An estimator of advantages.

    Its function makes one advantage per trajectory from `rewards` and `lengths` in tokens.

    Attributes:
      of_tokens: whether it makes an `AdvantageEstimate` instead, from per-token `rewards`.
      of_pairs: whether it picks a pair from each group, for a loss on pairs.
      is_positive: whether advantages are never negative, so that no token's probability is pushed
        down.
      of_demonstrations: whether the trajectories are demonstrations, which were neither sampled
        nor judged.
      of_preferences: whether the trajectories are pairs from the data, one of each pair preferred.
    """

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
    def needs_parts(self) -> bool:
        """Says whether advantages are made from the scores by each part of the reward."""
        return takes(self.function, "parts")

    @property
    def needs_roles(self) -> bool:
        """Says whether advantages compare the trajectories of a role."""
        return takes(self.function, "roles")

    @property
    def needs_values(self) -> bool:
        """Says whether advantages use a critic's values, and come with returns to train it."""
        return takes(self.function, "values")

    @property
    def needs_baselines(self) -> bool:
        """Says whether rewards are compared with that of a greedy completion of the prompt."""
        return takes(self.function, "baselines")


@dataclasses.dataclass(frozen=True)
class Loss(AlgorithmPiece):
    """A policy loss.

    Its function makes the loss of each token from `logprobs`; `old_logprobs` are the proximal
    policy's.

    Attributes:
      clipped: marks the tokens that the loss clips; None if it clips none.
      of_trajectories: whether it takes one advantage per trajectory.
      of_pairs: whether it compares the trajectories of a pair.
      of_scores: whether it is a loss on the scores of a reward model, not on a policy; see
        `rl_sync.learning.pairs`.
      has_ratio: whether it contains the ratio to another policy, which limits the effect of stale
        tokens.
      of_sequences: whether a token's loss depends on other tokens of its sequence.
      of_probabilities: whether a token's loss depends on more than the ratios of its probabilities.
    """

    clipped: AlgorithmPiece | None = None
    of_trajectories: bool = False
    of_pairs: bool = False
    of_scores: bool = False
    has_ratio: bool = True
    of_sequences: bool = False
    of_probabilities: bool = False

    @property
    def needs_reference(self) -> bool:
        """Says whether the loss compares the policy with the reference model."""
        return takes(self.function, "ref_logprobs")

    @property
    def clips(self) -> bool:
        """Says whether `clip_high` bounds the ratio or its substitute."""
        return takes(self.function, "clip_high")


@dataclasses.dataclass(frozen=True)
class Correction(AlgorithmPiece):
    """A weight for tokens that an older policy sampled.

    Its function compares `logprobs` with `behavior_logprobs`, token by token.

    Attributes:
      is_ratio: whether it weighs by the ratio itself, rather than by 0 or 1.
      of_update: whether it needs all tokens of an update beforehand.
      of_sequences: whether a token's weight depends on other tokens of its sequence.
    """

    is_ratio: bool = False
    of_update: bool = False
    of_sequences: bool = False


ADVANTAGES = {
    "grpo": Advantage("advantages.grpo"),
    "dr_grpo": Advantage("advantages.dr_grpo"),
    "gdpo": Advantage("advantages.gdpo"),
    "rloo": Advantage("advantages.rloo"),
    "opo": Advantage("advantages.opo"),
    "rae": Advantage("advantages.rae"),
    "reinforce_pp": Advantage("returns.reinforce_pp", of_tokens=True),
    "reinforce_pp_baseline": Advantage("advantages.reinforce_pp_baseline"),
    "remax": Advantage("returns.remax", of_tokens=True),
    "best": Advantage("advantages.best", is_positive=True),
    "none": Advantage("advantages.none"),
    "pair": Advantage("advantages.pair", of_pairs=True),
    "demonstration": Advantage(
        "advantages.demonstration", is_positive=True, of_demonstrations=True
    ),
    "preference": Advantage("advantages.preference", of_pairs=True, of_preferences=True),
    "gae": Advantage("returns.gae", of_tokens=True),
    "n_step": Advantage("returns.n_step", of_tokens=True),
}

LOSSES = {
    "ppo_clip": Loss("losses.ppo_clip", clipped=AlgorithmPiece("losses.is_clipped")),
    "cispo": Loss("losses.cispo", clipped=AlgorithmPiece("losses.is_outside")),
    "gspo": Loss(
        "sequence_losses.gspo",
        clipped=AlgorithmPiece("sequence_losses.is_gspo_clipped"),
        of_sequences=True,
    ),
    "sapo": Loss("losses.sapo"),
    "gmpo": Loss(
        "sequence_losses.gmpo",
        clipped=AlgorithmPiece("sequence_losses.is_gmpo_clipped"),
        of_trajectories=True,
        of_sequences=True,
    ),
    "dppo": Loss("losses.dppo", clipped=AlgorithmPiece("losses.has_left"), of_probabilities=True),
    "reinforce": Loss("losses.reinforce", has_ratio=False),
    "opmd": Loss("sequence_losses.opmd", of_sequences=True),
    "topr": Loss("sequence_losses.topr", of_trajectories=True, of_sequences=True),
    "dpo": Loss("preference.dpo_of_groups", of_pairs=True, of_sequences=True),
    "bradley_terry": Loss(
        "preference.bradley_terry",
        of_pairs=True,
        of_scores=True,
        has_ratio=False,
        of_sequences=True,
    ),
}

PROXIMAL: dict[str, AlgorithmPiece] = {
    "behavior": AlgorithmPiece("proximal.behavior"),
    "start": AlgorithmPiece("proximal.start"),
    "interpolated": AlgorithmPiece("proximal.interpolated"),
}

CORRECTIONS = {
    "token_truncation": Correction("corrections.truncated_token_weights", is_ratio=True),
    "sequence_truncation": Correction(
        "corrections.truncated_sequence_weights", is_ratio=True, of_sequences=True
    ),
    "token_mask": Correction("corrections.token_mask"),
    "sequence_rejection": Correction("corrections.sequence_rejection", of_sequences=True),
    "geometric_rejection": Correction("corrections.geometric_rejection", of_sequences=True),
    "second_moment": Correction("corrections.second_moment_mask", of_update=True),
    "negative_sequence_mask": Correction("corrections.negative_sequence_mask", of_sequences=True),
}

PUBLISHED_CORRECTIONS = {
    "tis": "token_truncation",
    "icepop": "token_mask",
    "mis": "sequence_rejection",
}
"""Corrections by their published names: truncated importance sampling, IcePop, masked importance
sampling."""

AGGREGATIONS: dict[str, AlgorithmPiece] = {
    "token_mean": AlgorithmPiece("aggregation.token_mean"),
    "sequence_mean": AlgorithmPiece("aggregation.sequence_mean"),
    "sequence_sum_mean": AlgorithmPiece("aggregation.sequence_sum_mean"),
    "constant_mean": AlgorithmPiece("aggregation.constant_mean"),
}

KL_ESTIMATORS: dict[str, AlgorithmPiece] = {
    "k1": AlgorithmPiece("kl.k1"),
    "k2": AlgorithmPiece("kl.k2"),
    "k3": AlgorithmPiece("kl.k3"),
    "abs": AlgorithmPiece("kl.absolute"),
}


CENTERINGS = ("off", "exact", "topk")
DISTILLATIONS = OFF, SAMPLED, EXACT, TOPK = "off", "sampled", "exact", "topk"
"""Ways in which a policy learns from a teacher; see `rl_sync.algorithms.distillation`."""


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """`config.algorithm`: the loss that a trainer step minimizes. The defaults make GRPO.

    `rl_sync.settings.rules.algorithm_rules` says which pieces fit each other.

    Raises:
      ValueError: an unknown name, or a value outside its bounds.
    """

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
    score_centering: str = setting(
        "off",
        "Removes the drift of a policy whose tokens another distribution drew (score centering)."
        " `exact` has explorers record the log-probability of every token of the vocabulary, or the"
        " trainer compute them where rollout.score=trainer. `topk` has explorers record those of"
        " the centering_tokens best, and of all others together.",
        choices=CENTERINGS,
    )
    centering_tokens: int = setting(
        16,
        "Likeliest tokens that explorers record in score_centering=topk, 8 bytes each.",
        unit="tokens",
        least=1,
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
    segment_returns: bool = setting(
        False,
        "Ends returns with each segment of an episode, such as the conversation of a sub-agent, in"
        " gae, n_step and reinforce_pp: a token gets the rewards of later turns of its segment, and"
        " the episode's outcome, but no rewards of other segments' turns.",
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
    distillation: str = setting(
        "off",
        "Divergence of the policy from its teacher (`teacher.path`), at each token of its own"
        " completions. `sampled` adds log q − log π of the drawn token to its advantage; the loss"
        " has the whole divergence with `exact`, and with `topk` that of the teacher's best tokens"
        " and of all others as one.",
        choices=DISTILLATIONS,
    )
    distillation_coefficient: float = setting(
        1.0, "Weight of the divergence from the teacher.", above=0
    )
    distillation_top_k: int = setting(
        64, "Tokens that distillation=topk compares one by one.", unit="tokens", least=1
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
        "Margin of the soft overlong penalty below the maximum length of a completion; 0 for none.",
        unit="tokens",
        least=0,
    )
    mask_truncated: bool = setting(
        False, "Leaves completions that were cut at the maximum length out of the loss."
    )
    filter_zero_variance: bool = setting(False, "Leaves groups of equal rewards out of the loss.")
    filter: str = setting(
        "",
        "Parts of the reward, comma-separated, whose weighted sum groups are filtered by: groups"
        " without spread of it are left out of the loss, and group_mean_low, group_mean_high and"
        " keep=best look at it. A part is a term of task.reward; `outcome` is all terms but those"
        " for the form. Empty for the whole reward.",
    )
    group_mean_low: float = setting(
        -UNBOUNDED,
        "Mean reward below which groups are left out of the loss. A bound also leaves out groups of"
        " equal rewards, where advantages compare a group.",
    )
    group_mean_high: float = setting(
        UNBOUNDED,
        "Mean reward above which groups are left out of the loss. A bound also leaves out groups of"
        " equal rewards, where advantages compare a group.",
    )
    max_attempts: int = setting(
        1,
        "Prompts that are tried for a place in a batch until one makes a group that"
        " filter_zero_variance, filter, group_mean_low and group_mean_high do not leave out, by its"
        " rewards as they were judged (dynamic sampling)."
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

    def __post_init__(self) -> None:
        check(self, "algorithm")

    @property
    def corrections(self) -> tuple[str, ...]:
        """The names in `correction`, with published names replaced by those in `CORRECTIONS`."""
        names = (name.strip() for name in self.correction.split(",") if name.strip())
        return tuple(PUBLISHED_CORRECTIONS.get(name, name) for name in names)

    @property
    def looks_ahead(self) -> bool:
        """Says whether a correction needs all tokens of an update before the update."""
        return any(CORRECTIONS[name].of_update for name in self.corrections)

    @property
    def centers(self) -> bool:
        """Says whether the loss needs the distributions that tokens were drawn from."""
        return self.score_centering != "off" and self.generates

    @property
    def demonstrations_only(self) -> bool:
        """Says whether a run trains on the task's demonstrations, and generates nothing."""
        return ADVANTAGES[self.advantage].of_demonstrations

    @property
    def scores(self) -> bool:
        """Says whether a run trains a reward model instead of a policy."""
        return LOSSES[self.loss].of_scores

    @property
    def generates(self) -> bool:
        """Says whether a run generates its completions, instead of taking them from the data."""
        return not (self.demonstrations_only or self.scores)

    @property
    def learning(self) -> str:
        """One word for the kind of learning in trainer steps."""
        if self.scores:
            return "training"
        return "SFT" if self.demonstrations_only else "RL"

    @property
    def needs_reference(self) -> bool:
        """Says whether there is a reference model."""
        return self.kl_coefficient > 0 or LOSSES[self.loss].needs_reference

    @property
    def has_teacher(self) -> bool:
        """Says whether the policy learns from a teacher."""
        return self.distillation != OFF

    @property
    def needs_baselines(self) -> bool:
        """Says whether a greedy completion is generated with each group."""
        return ADVANTAGES[self.advantage].needs_baselines

    @property
    def needs_roles(self) -> bool:
        """Says whether a batch has the role of each trajectory."""
        return ADVANTAGES[self.advantage].needs_roles

    @property
    def screening(self) -> Screening:
        """The rule by which groups are replaced before they reach the replay buffer."""
        means = self.group_mean_low, self.group_mean_high
        return Screening(self.needs_spread, *means, self.max_attempts)

    @property
    def needs_spread(self) -> bool:
        """Says whether groups of equal rewards, or of equal filtered parts, are left out.

        Bounds of a group's mean ask for groups that teach. Where advantages compare a group, one
        of equal rewards does not, whatever its mean.
        """
        bounded = self.group_mean_low > -UNBOUNDED or self.group_mean_high < UNBOUNDED
        compares = ADVANTAGES[self.advantage].compares_groups
        return self.filter_zero_variance or bool(self.filtered_parts) or (bounded and compares)

    @property
    def filtered_parts(self) -> tuple[str, ...]:
        """The names in `filter`."""
        return tuple(name.strip() for name in self.filter.split(",") if name.strip())

    @property
    def selects_groups(self) -> bool:
        """Says whether some generated groups are not trained on because of their rewards."""
        return self.over_sampling > 1 or self.screening.replaces

    @property
    def needs_values(self) -> bool:
        """Says whether advantages use a critic's values."""
        return ADVANTAGES[self.advantage].needs_values

    @property
    def adapts_kl(self) -> bool:
        """Says whether the weight of the divergence from the reference model changes."""
        return self.kl_coefficient > 0 and self.kl_target > 0


ALGORITHMS = {name: Algorithm(name=name, **one.changes) for name, one in PUBLISHED.items()}
"""The published algorithms, by name."""

FRESH, STALE = "grpo", "decoupled_ppo"
"""Names of the default algorithms: for runs without stale data, and for runs with it."""
