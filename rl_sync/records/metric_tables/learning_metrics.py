"""Metrics of the loss, the policy, the rewards and the critic."""

from __future__ import annotations

from rl_sync.records.metric_tables.metric import Metric, Threshold

OPTIMIZATION = (
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
        alarm="above 0: judgements/ and `pipeline/left_out` say why",
    ),
)

POLICY = (
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

REWARDS = (
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
        alarm=Threshold("judgements/ says why", least=1, name="unjudged completions"),
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

CRITIC = (
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

REWARD_MODEL = (
    Metric("pair_accuracy", "Share of pairs whose chosen completion has the higher score."),
    Metric("score_gap", "Mean distance of the scores of chosen and rejected completions."),
    Metric("chosen_tokens_mean", "Mean length of chosen completions.", unit="tokens"),
    Metric("rejected_tokens_mean", "Mean length of rejected completions.", unit="tokens"),
)

EPISODES = (
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
            "judgements/ and logs/ say why",
            least=0.1,
            name="failed episodes",
            parts=("time-out", "environment_failure"),
        ),
    ),
    Metric("episode/NAME", "Mean of a metric that the environment gives itself."),
)
