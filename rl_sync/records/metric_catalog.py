"""All metrics of a run: names, units, meanings, normal values, and alarms.

A part of a name in capitals is a placeholder: `reward/NAME` for `reward/format`. A `Threshold` is
both the text about a metric and the alarm of a run (`rl_sync.records.alarms`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

MetricValues = Mapping[str, Any]
"""Values of metrics by their names; of a written line also its other fields."""

SFT, RL, EVALUATION = "sft", "rl", "evaluation"
LINE_FIELDS = ("phase", "step", "time")
"""The fields of a line of `metrics.jsonl` that are not metrics."""


class Threshold(NamedTuple):
    """Values of a metric that raise an alarm after `observe.alarm_steps` trainer steps in a row.

    Attributes:
      advice: a clause with advice or the meaning.
      least: lower bound of the values that raise it; None for no such bound.
      most: upper bound of the values that raise it; None for no such bound.
      name: name of the alarm; empty for the metric's name in words.
      falling: whether the values raise it only while rewards are lower than before.
      ignored_steps: number of first trainer steps in which the values do not raise it.
      parts: texts that replace the placeholder in the metric's name.
    """

    advice: str
    least: float | None = None
    most: float | None = None
    name: str = ""
    falling: bool = False
    ignored_steps: int = 0
    parts: tuple[str, ...] = ()

    @property
    def bound(self) -> str:
        """The values in words, such as `0.3 or more while rewards fall`."""
        value, side = (self.most, "less") if self.least is None else (self.least, "more")
        return (
            f"{value:g} or {side}"
            + f" after {self.ignored_steps} steps" * bool(self.ignored_steps)
            + " while rewards fall" * self.falling
        )

    def __str__(self) -> str:
        parts = " or ".join(f"`{part}`" for part in self.parts)
        return f"{parts} {self.bound}: {self.advice}".strip()

    def holds(self, value: float) -> bool:
        """Says whether a value is beyond the threshold."""
        return (self.least is not None and value >= self.least) or (
            self.most is not None and value <= self.most
        )


class Metric(NamedTuple):
    """A metric, or several metrics whose names differ in one part.

    Attributes:
      name: its name; parts in capitals are placeholders for any text.
      meaning: a sentence.
      unit: unit of the number; empty for a share or a plain number.
      normal: values of a healthy run; empty if tasks differ too much.
      alarm: values that deserve a look, and where to look: a threshold that a run watches, or
        words; empty for none.
      trl, verl: names of the same number in TRL and verl; empty if they have none.
    """

    name: str
    meaning: str
    unit: str = ""
    normal: str = ""
    alarm: Threshold | str = ""
    trl: str = ""
    verl: str = ""


_OPTIMIZATION = (
    Metric(
        "loss",
        "The loss that the optimizer descends, mean over the step's updates.",
        normal="around 0 for group-relative advantages",
        alarm="grows without end",
        trl="loss",
    ),
    Metric("policy_loss", "The loss without divergence and entropy.", verl="actor/pg_loss"),
    Metric(
        "gradient_norm",
        "Norm of the gradient before it is clipped, mean over the updates.",
        normal="below a few times `optimizer.max_gradient_norm`",
        alarm="jumps by a factor of ten, or 0: no group has spread",
        trl="grad_norm",
        verl="actor/grad_norm",
    ),
    Metric(
        "learning_rate",
        "Learning rate of the step's first update.",
        trl="learning_rate",
        verl="actor/lr",
    ),
    Metric(
        "skipped_updates",
        "Updates that changed nothing, since their loss or gradient was not finite.",
        unit="updates",
        normal="0",
        alarm=Threshold(
            "a lower learning rate; the run stops at `optimizer.max_skipped_updates` in a row",
            least=1,
        ),
    ),
    Metric(
        "loss_scale",
        "Factor on the loss in float16, so that small gradients do not vanish; after the step.",
        normal="a power of two; it is halved when a gradient overflows",
        alarm="1: gradients are too large for float16",
    ),
    Metric(
        "loss_scale_skips",
        "Updates of the phase so far that were skipped, since `loss_scale` was too high for their"
        " gradient; they do not count as `skipped_updates`.",
        unit="updates",
        normal="grows slowly, by a few updates at the start",
    ),
    Metric(
        "unjudged_updates",
        "Updates that changed nothing, since none of their completions could be judged, or"
        " `experience.pipeline` left all out.",
        unit="updates",
        normal="0",
        alarm="above 0: judgements.jsonl and `pipeline/left_out` say why",
    ),
)

_POLICY = (
    Metric(
        "entropy",
        "Entropy of the policy's next token, mean over the tokens of completions.",
        unit="nats",
        normal="falls slowly",
        alarm="under a tenth of its start while rewards are not near their greatest: the policy has"
        " stopped exploring",
        trl="entropy",
        verl="actor/entropy",
    ),
    Metric(
        "clip_fraction",
        "Share of tokens that the loss bounds, so that they have no gradient.",
        normal="0 to 0.2",
        alarm=Threshold(
            "fewer updates a batch, fresher data or a lower learning rate", least=0.3, falling=True
        ),
        trl="clip_ratio/region_mean",
        verl="actor/pg_clipfrac",
    ),
    Metric(
        "clip_fraction_low",
        "Those of them whose ratio is below 1, at the lower bound.",
        trl="clip_ratio/low_mean",
    ),
    Metric(
        "clip_fraction_high",
        "Those of them whose ratio is above 1, at the upper bound.",
        trl="clip_ratio/high_mean",
    ),
    Metric(
        "kl_reference",
        "Divergence of the policy from the reference model (k3), mean over tokens.",
        unit="nats",
        normal="below 0.1 for a small `algorithm.kl_coefficient`",
        alarm=Threshold(
            "the policy leaves its start: a lower learning rate, or a larger"
            " `algorithm.kl_coefficient`",
            least=0.5,
            falling=True,
        ),
        trl="kl",
        verl="actor/kl_loss",
    ),
    Metric(
        "kl_teacher",
        "Divergence of the policy from its teacher, mean over tokens: over the vocabulary with"
        " `algorithm.distillation=exact`, at least its part of `topk`, or k3 of the drawn tokens.",
        unit="nats",
        normal="falls",
        alarm=Threshold(
            "nothing is left to learn from the teacher; from the first step on it is the policy"
            " itself (`teacher.path`, `teacher.step`)",
            most=1e-7,
            name="teacher",
        ),
    ),
    Metric(
        "kl_coefficient",
        "Weight of that divergence in the step.",
        verl="actor/reward_kl_penalty_coeff",
    ),
    Metric(
        "kl_behavior_proximal",
        "Divergence of the step's first policy from the one that drew the tokens (k3), which grows"
        " with staleness.",
        unit="nats",
        normal="below 0.05",
        alarm=Threshold(
            "a smaller `sync.max_staleness`, a lower learning rate, or a correction",
            least=0.1,
            falling=True,
        ),
    ),
    Metric(
        "kl_proximal_current",
        "Divergence of the policy from that of the step's start (k3), mean over the updates.",
        unit="nats",
        normal="below 0.05",
        alarm=Threshold("fewer updates a batch or a lower learning rate", least=0.1, falling=True),
        verl="actor/ppo_kl",
    ),
    Metric(
        "logprob_gap",
        "Mean distance of the trainer's log-probabilities from the explorers', before the step's"
        " first update.",
        unit="nats",
        normal="below 0.02 with fresh data",
        alarm="above `algorithm.logprob_gap_alarm`: data too stale, or engines that compute"
        " differently",
        trl="sampling/sampling_logp_difference/mean",
        verl="training/rollout_probs_diff_mean",
    ),
    Metric(
        "mismatch",
        "Mean distance of the trainer's log-probabilities from the explorers' for the same weights"
        " and tokens: rounding, not staleness. It is over the tokens that the weights at the step's"
        " start drew, or over all of them with `rollout.score=trainer`.",
        unit="nats",
        normal="below 0.02",
    ),
    Metric(
        "sampler_distance",
        "Total variation between the distribution that a token was drawn from and the policy's,"
        " ½ Σ |q − p|, with all tokens that were not recorded as one. It is measured with"
        " `algorithm.score_centering`.",
        normal="below 0.1",
    ),
    Metric(
        "score_drift",
        "Size of what `algorithm.score_centering` subtracts at a token, advantages included: the"
        " sum over the vocabulary of the absolute gradient in the logits. It is 0 where the sampler"
        " is the policy.",
    ),
    Metric(
        "effective_sample_share",
        "(Σw)² / (n Σw²) of the weights π / π_behavior: the share of equal samples that the tokens"
        " are worth.",
        normal="0.8 to 1",
        alarm=Threshold(
            "the data are too far off-policy: a lower learning rate, fewer updates a batch, or a"
            " smaller `sync.max_staleness`",
            most=0.5,
            falling=True,
        ),
    ),
    Metric(
        "ratio_pPERCENT_staleness_STEPS",
        "Percentile of π / π_behavior over the tokens of one staleness; the last one stands for"
        " greater ones, too. Empty for a staleness that no token has.",
        normal="0.5 to 2",
    ),
    Metric("mask_fraction", "Share of tokens whose weight in the loss is 0.", normal="0 to 0.5"),
    Metric(
        "left_out_fraction", "Share of tokens that the shaping of the batch leaves out of the loss."
    ),
    Metric(
        "demonstration_loss",
        "Negative log-likelihood of the demonstrations that are mixed in.",
        unit="nats",
    ),
)

_REWARDS = (
    Metric(
        "reward_mean",
        "Mean reward of all trajectories that were generated for the step and could be judged,"
        " whether or not the step trains on them. Empty where none could.",
        normal="rises",
        alarm="0 for many steps: tasks too hard, or a reward that never fits",
        trl="reward",
        verl="critic/rewards/mean",
    ),
    Metric("reward_std", "Standard deviation of these rewards.", trl="reward_std"),
    Metric("reward_min", "Least of these rewards.", verl="critic/rewards/min"),
    Metric("reward_max", "Greatest of these rewards.", verl="critic/rewards/max"),
    Metric(
        "selected_reward_mean",
        "Mean reward of the trajectories that the step trains on, where groups are selected by"
        " their rewards (`algorithm.over_sampling`, `algorithm.max_attempts`).",
    ),
    Metric(
        "reward/NAME",
        "Mean of one term of the reward over the trajectories that were generated for the step and"
        " that it judged.",
        trl="rewards/NAME/mean",
    ),
    Metric(
        "reward/NAME/off_scale",
        "Share of answers with boxes or points whose coordinates are of another scale than the"
        " reward's option `answer_scale` says: all at most 1, or far outside of the image.",
        normal="near 0",
        alarm=Threshold(
            "the reward's options `answer_scale` and `order`, or a prompt that asks for these"
            " coordinates",
            least=0.5,
            name="coordinates of another scale",
            parts=("iou", "point_in_box", "vision"),
        ),
    ),
    Metric(
        "reward/unjudged",
        "Trajectories of those generated for the step that could not be judged.",
        unit="trajectories",
        normal="0",
        alarm=Threshold("judgements.jsonl says why", least=1, name="unjudged completions"),
    ),
    Metric(
        "prompts/success_rate",
        "Mean success of the step's groups, as `curriculum.success` measures it.",
    ),
    Metric("prompts/success_rate/SET", "The same of one set of a mixture (`task.mixture.sets`)."),
    Metric("prompts/share/SET", "Share of a set among the step's groups."),
    Metric("prompts/seen", "Share of the training prompts that were used so far."),
    Metric(
        "prompts/in_band",
        "Share of the step's prompts whose success rate was in the band when they were chosen"
        " (`curriculum.selection=difficulty_band`).",
        normal="near 1 minus `curriculum.explore`, once prompts have been tried",
        alarm="near 0: the band is empty, so the prompts nearest to it are trained on",
    ),
    Metric("prompts/unseen", "Share of the step's prompts that were new when they were chosen."),
    Metric(
        "pipeline/left_out",
        "Share of the step's trajectories that the functions of `experience.pipeline` left out.",
        alarm="near 1: hardly anything is trained on",
    ),
    Metric(
        "pipeline/NAME",
        "Mean of a number that these functions noted, over the trajectories that have it.",
    ),
    Metric(
        "groups_without_spread",
        "Share of groups, of those with judged completions, whose rewards, with overlong_tokens and"
        " turn_discount, are all equal: nothing can be learned from them.",
        normal="below 0.7",
        alarm="1: tasks too easy or too hard",
        trl="frac_reward_zero_std",
    ),
    Metric(
        "groups_unsolved",
        "Share of the groups generated for the step, of those with judged completions, in which the"
        " first term of the reward that applies gives none more than 0. Only for rewards of several"
        " terms, and for `by_set`.",
        normal="falls",
        alarm="near 1: tasks too hard",
    ),
    Metric(
        "groups_shaped_only",
        "Share of groups that are unsolved, alike by that term, and have different rewards: their"
        " advantages come from the other terms alone, such as one for lengths.",
        normal="falls",
        alarm="above 0.5 for many steps: lower weights of these terms, or easier tasks",
    ),
    Metric(
        "shaped_advantages",
        "Share of the advantages, as a sum of absolute values over the tokens in the loss, that is"
        " of groups whose outcomes are all equal: there the reward's terms for the form, or"
        " overlong_tokens, move the policy alone. The outcome is what `algorithm.filter` names, or"
        " else all terms but those for the form. Only where these differ from the whole reward.",
        normal="below 0.3",
        alarm="above 0.5 for many steps: `algorithm.filter=outcome`",
    ),
    Metric("advantage_mean", "Mean advantage over tokens.", verl="critic/advantages/mean"),
    Metric("advantage_std", "Standard deviation of the advantages over tokens."),
)

_LENGTHS = (
    Metric(
        "prompt_tokens_mean",
        "Mean length of the batch's prompts.",
        unit="tokens",
        verl="prompt_length/mean",
    ),
    Metric("prompt_tokens_max", "Greatest length.", unit="tokens", verl="prompt_length/max"),
    Metric(
        "completion_tokens_mean",
        "Mean number of tokens that the policy drew in a trajectory.",
        unit="tokens",
        alarm="rises to the limit without more reward, or falls to 1",
        trl="completions/mean_length",
        verl="response_length/mean",
    ),
    Metric(
        "completion_tokens_max",
        "Greatest number.",
        unit="tokens",
        trl="completions/max_length",
        verl="response_length/max",
    ),
    Metric(
        "truncated_fraction",
        "Share of trajectories that were cut at a limit.",
        normal="below 0.1",
        alarm=Threshold(
            "a larger `task.max_completion_tokens` or limits of `environment.*`, a text that ends a"
            " completion (`rollout.stop_strings`), or a reward for short ones"
            " (`algorithm.overlong_tokens`)",
            least=0.5,
            name="truncation",
        ),
        trl="completions/clipped_ratio",
        verl="response_length/clip_ratio",
    ),
    Metric(
        "unprintable_fraction",
        "Share of completions with characters that cannot be printed.",
        normal="0",
        alarm=Threshold(
            "a tokenizer that fits the model, a lower `rollout.temperature` or a lower learning"
            " rate; or SFT first (`sft.steps`), if the model began at random",
            least=0.1,
            name="unprintable text",
        ),
    ),
    Metric(
        "num_tokens",
        "Tokens of prompts and completions that the run has trained on so far.",
        unit="tokens",
        trl="num_tokens",
        verl="perf/total_num_tokens",
    ),
)

_STALENESS = (
    Metric(
        "staleness_mean",
        "Trainer steps between the weights that drew a token and those that learn from it, mean"
        " over tokens.",
        unit="steps",
        normal="below the bound that `plan` prints",
    ),
    Metric(
        "staleness_max",
        "The greatest staleness of a token.",
        unit="steps",
        normal="at most the bound that `plan` prints",
    ),
    Metric("staleness_max_updates", "The same in optimizer updates.", unit="updates"),
)

_TIMES = (
    Metric(
        "step_secs",
        "Time that the trainer computed the step.",
        unit="s",
        verl="timing_s/update_actor",
    ),
    Metric(
        "tokens_per_sec",
        "Tokens that the policy drew, divided by that time.",
        unit="tokens/s",
        verl="perf/throughput",
    ),
    Metric(
        "time/ROLE/PHASE",
        "Time that the trainer, or all explorers together, spent in a phase since the step before:"
        " the kinds of spans of the timeline. Phases may overlap. Explorers tell theirs every half"
        " second.",
        unit="s",
        verl="timing_s/PHASE",
    ),
)

_RELIABILITY = (
    Metric(
        "run/effective_share",
        "Share of the time from the first rollout to the step that led to steps that count (ETTR):"
        " no death of a role held it up.",
        normal="1",
        alarm="below 0.9: restarts.jsonl says who died, and why",
    ),
    Metric(
        "run/failures",
        "Deaths so far after which a role was started again, and the run lost time.",
        unit="deaths",
        normal="0",
    ),
    Metric(
        "run/secs_per_failure",
        "Mean time from such a death until the role did its work again, with repeated steps; an"
        " explorer's counts by its share of the explorers.",
        unit="s",
    ),
)

_CRITIC = (
    Metric("value_loss", "Loss of the critic.", verl="critic/vf_loss"),
    Metric("value_mean", "Mean value before a token.", verl="critic/values/mean"),
    Metric(
        "value_clip_fraction",
        "Share of tokens whose value has moved as far as a step may move it.",
        verl="critic/vf_clipfrac",
    ),
    Metric(
        "explained_variance",
        "1 − Var(R − V) / Var(R) before the step, for returns R and values V.",
        normal="rises to 0.5 and more",
        alarm=Threshold(
            "the critic learns nothing: another `critic.learning_rate`", most=-0.1, ignored_steps=20
        ),
        verl="critic/vf_explained_var",
    ),
    Metric("critic_gradient_norm", "Norm of the critic's gradient.", verl="critic/grad_norm"),
)

_REWARD_MODEL = (
    Metric("pair_accuracy", "Share of pairs whose chosen completion has the higher score."),
    Metric("score_gap", "Mean distance of the scores of chosen and rejected completions."),
    Metric("chosen_tokens_mean", "Mean length of chosen completions.", unit="tokens"),
    Metric("rejected_tokens_mean", "Mean length of rejected completions.", unit="tokens"),
)

_SCORES = (
    Metric("score_mean", "Mean score of the held-out pairs' completions."),
    Metric("score_std", "Standard deviation of these scores."),
    Metric("score_gap", "Mean distance of the scores of chosen and rejected completions."),
)

_EPISODES = (
    Metric("episode/turns", "Mean number of turns of an episode.", unit="turns"),
    Metric(
        "episode/segments",
        "Mean number of segments of an episode.",
        unit="segments",
        normal="1, unless the template rewrites history",
    ),
    Metric(
        "episode/ended/REASON",
        "Share of episodes that ended for a reason.",
        alarm=Threshold(
            "judgements.jsonl and logs/ say why",
            least=0.1,
            name="failed episodes",
            parts=("time-out", "environment_failure"),
        ),
    ),
    Metric("episode/NAME", "Mean of a metric that the environment gives itself."),
)

_ACCURACY = (
    Metric(
        "accuracy",
        "Share of held-out completions that solve their problem.",
        normal="rises",
        alarm="its interval lies below that of an earlier evaluation: a lower learning rate; if"
        " rewards rise, the reward is gamed, or training problems are learned by heart",
    ),
    Metric("accuracy_low", "Lower end of its 95 % confidence interval."),
    Metric("accuracy_high", "Upper end."),
    Metric("accuracy_seen", "Accuracy on held-out problems whose prompts are trained on, too."),
    Metric("accuracy_unseen", "Accuracy on the others."),
    Metric("accuracy/CATEGORY", "Accuracy on the problems of one category, with interval."),
    Metric(
        "score",
        "Mean score by the reward's first term, if it is not always 0 or 1: ANLS with `anls`, mean"
        " IoU with `iou`.",
        normal="rises",
    ),
    Metric("score/CATEGORY", "Mean score on the problems of one category."),
    Metric("pass@K", "Chance that one of K completions solves a problem, with interval."),
    Metric("games_won", "Share of games of several players that the policy won.", normal="rises"),
    Metric("games_drawn", "Share that ended in a draw."),
    Metric("games_lost", "Share that it lost, by an illegal move, too.", normal="falls"),
    Metric("mean@K", "The accuracy over K completions a problem, with interval."),
    Metric("majority@K", "Accuracy of the most frequent answer of K, with interval."),
    Metric("problems", "Held-out problems with a completion that was judged.", unit="problems"),
    Metric("problems_seen", "Those whose prompts are trained on, too.", unit="problems"),
    Metric("problems_unseen", "The others.", unit="problems"),
    Metric("problems/CATEGORY", "Those of one category.", unit="problems"),
    Metric("unjudged", "Held-out completions that could not be judged.", unit="completions"),
    Metric(
        "rollouts_lost_secs",
        "Time in which an explorer's rollouts stood still for an evaluation beside them.",
        unit="s",
        normal="below 5 % of the time between two evaluations",
    ),
)

_PROBE = (
    Metric("probe_accuracy", "Accuracy on a few held-out problems, between steps.", normal="rises"),
    Metric("probe_accuracy_low", "Lower end of its 95 % confidence interval."),
    Metric("probe_accuracy_high", "Upper end."),
    Metric("probe_accuracy_seen", "That on problems whose prompts are trained on, too."),
    Metric("probe_accuracy_unseen", "That on the others."),
)

_DRAFTS = (
    Metric(
        "drafts/drafted_tokens",
        "Tokens that explorers drafted since the step before (`rollout.speculation`).",
        unit="tokens",
    ),
    Metric("drafts/accepted_tokens", "Those of them that were drawn.", unit="tokens"),
    Metric(
        "drafts/tokens_a_step",
        "Tokens that a sequence gets in a decode step, on average.",
        unit="tokens",
        normal="1 without drafts that fit",
    ),
)

_WEIGHTS = (
    Metric(
        "weights/changed_share",
        "With `sync.delta`: share of published values that differ from the version before.",
        normal="below 0.1",
        alarm="near 1, full copies take fewer bytes: lower `optimizer.learning_rate`, publish"
        " bfloat16 (`explorer.dtype`), or set `sync.delta=off`",
    ),
    Metric("weights/delta_bytes", "Size of the differences that the trainer made.", unit="bytes"),
    Metric("weights/dense_bytes", "Size of these versions as full copies.", unit="bytes"),
    Metric("weights/encode_secs", "Time to encode them, beside the training.", unit="s"),
    Metric("weights/received_bytes", "Size of what all explorers received.", unit="bytes"),
    Metric("weights/received_if_dense", "Its size, had full copies been sent.", unit="bytes"),
    Metric("weights/receive_secs", "Time to receive it, in all explorers.", unit="s"),
    Metric("weights/apply_secs", "Time to apply and verify it, in all explorers.", unit="s"),
    Metric("weights/full_copies", "Full copies that explorers received.", unit="copies"),
    Metric(
        "weights/refusals",
        "Versions that explorers refused, since a digest or a check sum was wrong.",
        unit="versions",
        normal="0",
        alarm="a full copy takes their place; if they come again, memory or network is faulty",
    ),
    Metric(
        "weights/engine_installs",
        "Versions that served engines were given (`explorer.engine`).",
        unit="versions",
    ),
    Metric(
        "weights/engine_install_secs",
        "Time until they held these and were checked.",
        unit="s",
        normal="below the time of a step",
        alarm="try `explorer.engine_transfer=delta`, or a larger `sync.interval`",
    ),
    Metric("weights/engine_paused_secs", "That part in which they drew no tokens.", unit="s"),
)

METRICS: dict[str, dict[str, tuple[Metric, ...]]] = {
    RL: {
        "Rewards": _REWARDS,
        "The policy": _POLICY,
        "Staleness": _STALENESS,
        "Lengths": _LENGTHS,
        "Optimization": _OPTIMIZATION,
        "Times": _TIMES,
        "Reliability": _RELIABILITY,
        "Weights": _WEIGHTS,
        "Drafts": _DRAFTS,
        "With a critic": _CRITIC,
        "With episodes of several turns": _EPISODES,
        "Reward models": _REWARD_MODEL,
    },
    EVALUATION: {"Evaluations": _ACCURACY, "Reward models": _SCORES},
    SFT: {"SFT": (*(one for one in _OPTIMIZATION if one.name != "policy_loss"), *_PROBE)},
}
"""The metrics of each phase, by subject."""


def thresholds() -> Iterator[tuple[str, Threshold]]:
    """Yields the thresholds of trainer steps, each with the whole name of its metric."""
    for metrics in METRICS[RL].values():
        for metric in metrics:
            if isinstance(one := metric.alarm, Threshold):
                for part in one.parts or ("",):
                    yield _pattern_part(metric.name, part), one


_INTERVAL = re.compile(r"(?<=.)_(low|high)(?=$|/)")


def find(phase: str, name: str) -> Metric | None:
    """Returns the record that describes a metric, or None if there is none."""
    known = [metric for part in METRICS[phase].values() for metric in part]
    for candidate in (name, _INTERVAL.sub("", name)):
        exact = [metric for metric in known if metric.name == candidate]
        if exact:
            return exact[0]
        alike = [metric for metric in known if _pattern(metric.name).fullmatch(candidate)]
        if alike:
            return min(alike, key=lambda metric: -len(metric.name))
    return None


def knows(phase: str, name: str) -> bool:
    """Says whether a field of a line of metrics is in the catalog, or in every line."""
    return name in LINE_FIELDS or find(phase, name) is not None


def _pattern_part(name: str, part: str) -> str:
    """Replaces the placeholder in a name by a text."""
    return re.sub(r"(?<![A-Z])[A-Z]+(?![A-Z])", part, name) if part else name


def _pattern(name: str) -> re.Pattern[str]:
    """Makes a pattern from a name whose placeholders match any text."""
    parts = re.split(r"(?<![A-Z])([A-Z]+)(?![A-Z])", name)
    return re.compile("".join(".+" if part.isupper() else re.escape(part) for part in parts))
