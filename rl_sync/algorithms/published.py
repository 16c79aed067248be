"""The published algorithms, as changes to GRPO (the defaults of `Algorithm`)."""

from __future__ import annotations

from typing import Any, NamedTuple


class Published(NamedTuple):
    """A published algorithm.

    Attributes:
      meaning: one sentence.
      changes: settings that differ from the defaults of `Algorithm`.
      paper: its source; empty for an algorithm without one.
    """

    meaning: str
    changes: dict[str, Any]
    paper: str = ""


_NO_KL: dict[str, Any] = {"kl_coefficient": 0.0}
_KL_IN_REWARD: dict[str, Any] = {"kl_estimator": "k1", "kl_place": "reward"}

PUBLISHED: dict[str, Published] = {
    "grpo": Published(
        "Compares each completion with the others of its group, and clips the ratio.",
        {},
        "arXiv:2402.03300",
    ),
    "dr_grpo": Published(
        "GRPO without the division by the group's spread and by the length.",
        dict(_NO_KL, advantage="dr_grpo", aggregation="constant_mean"),
        "arXiv:2503.20783",
    ),
    "dapo": Published(
        "GRPO that clips higher than lower, and replaces groups that all succeed or all fail.",
        dict(
            _NO_KL,
            aggregation="token_mean",
            clip_high=0.28,
            filter_zero_variance=True,
            max_attempts=10,
        ),
        "arXiv:2503.14476",
    ),
    "gdpo": Published(
        "GRPO that normalizes each part of the reward by itself, so that weights decide.",
        {"advantage": "gdpo"},
        "arXiv:2601.05242",
    ),
    "ppo": Published(
        "Clips the ratio; a critic says which tokens were better than expected.",
        dict(_KL_IN_REWARD, advantage="gae", aggregation="token_mean"),
        "arXiv:1707.06347, 2203.02155",
    ),
    "rloo": Published(
        "REINFORCE whose baseline is the mean reward of the group's other completions.",
        dict(_KL_IN_REWARD, advantage="rloo", loss="reinforce", aggregation="sequence_sum_mean"),
        "arXiv:2402.14740",
    ),
    "reinforce_pp": Published(
        "PPO without a critic: rewards are normalized over the whole batch.",
        dict(_KL_IN_REWARD, advantage="reinforce_pp", aggregation="token_mean"),
        "arXiv:2501.03262",
    ),
    "reinforce_pp_baseline": Published(
        "REINFORCE++ with the mean of the group as baseline.",
        dict(kl_estimator="k2", advantage="reinforce_pp_baseline", aggregation="token_mean"),
        "arXiv:2501.03262",
    ),
    "remax": Published(
        "REINFORCE whose baseline is the reward of the greedy completion.",
        dict(_KL_IN_REWARD, advantage="remax", loss="reinforce", aggregation="sequence_sum_mean"),
        "arXiv:2310.10505",
    ),
    "opo": Published(
        "REINFORCE with the baseline of least variance: rewards weighted by lengths.",
        dict(_NO_KL, advantage="opo", loss="reinforce", aggregation="sequence_sum_mean"),
        "arXiv:2505.23585",
    ),
    "gspo": Published(
        "Clips one ratio for a whole completion, the geometric mean over its tokens.",
        dict(_NO_KL, loss="gspo", clip_low=3e-4, clip_high=4e-4),
        "arXiv:2507.18071",
    ),
    "cispo": Published(
        "REINFORCE whose weights are clipped ratios, so that every token keeps a gradient.",
        dict(_NO_KL, loss="cispo", clip_low=1.0, clip_high=3.0, aggregation="token_mean"),
        "arXiv:2506.13585",
    ),
    "sapo": Published(
        "Replaces clipping by a smooth gate, steeper for tokens with a negative advantage.",
        dict(_NO_KL, loss="sapo"),
        "arXiv:2511.20347",
    ),
    "gmpo": Published(
        "Maximizes the geometric mean of the tokens' ratios, which outliers move less.",
        dict(_NO_KL, loss="gmpo", clip_low=0.4, clip_high=0.4),
        "arXiv:2507.20673",
    ),
    "opmd": Published(
        "REINFORCE with a penalty on the squared distance from the policy that drew the data.",
        dict(_NO_KL, advantage="dr_grpo", loss="opmd", aggregation="sequence_sum_mean"),
        "arXiv:2501.12599",
    ),
    "topr": Published(
        "Follows rewarded completions whole, and weighs down others that became unlikely.",
        dict(_NO_KL, advantage="dr_grpo", loss="topr", aggregation="sequence_sum_mean"),
        "arXiv:2503.14286",
    ),
    "on_policy_distillation": Published(
        "Follows a teacher at each token that the policy drew; rewards are only recorded.",
        dict(_NO_KL, advantage="none", aggregation="token_mean", distillation="sampled"),
        "arXiv:2306.13649",
    ),
    "decoupled_ppo": Published(
        "PPO's clipping around a recent policy, weighted for data of older ones.",
        dict(
            _NO_KL,
            proximal="start",
            correction="token_truncation",
            aggregation="token_mean",
            clip_high=0.28,
        ),
        "arXiv:2110.00641",
    ),
    "m2po": Published(
        "Decoupled PPO that leaves out the tokens that have moved farthest since they were drawn.",
        dict(
            _NO_KL,
            proximal="start",
            correction="second_moment,token_truncation",
            aggregation="token_mean",
            clip_high=0.28,
            weight_limit=5.0,
        ),
        "arXiv:2510.01161",
    ),
    "dppo": Published(
        "Masks tokens whose probability has moved too far, in place of clipping ratios.",
        dict(
            _NO_KL,
            advantage="dr_grpo",
            loss="dppo",
            aggregation="token_mean",
            clip_low=0.15,
            clip_high=0.15,
            weight_limit=20.0,
        ),
        "arXiv:2602.04879",
    ),
    "dpo": Published(
        "Prefers the best completion of a group to the worst, measured against a reference.",
        dict(_NO_KL, advantage="pair", loss="dpo", aggregation="sequence_sum_mean"),
        "arXiv:2305.18290, online as in arXiv:2402.04792",
    ),
    "sft": Published(
        "Learns from demonstrations of the task; nothing is generated.",
        dict(
            _NO_KL,
            advantage="demonstration",
            loss="reinforce",
            aggregation="token_mean",
            logprob_gap_alarm=0.0,
        ),
    ),
    "reward_model": Published(
        "Learns a reward model from pairs of completions; nothing is generated.",
        dict(
            _NO_KL,
            advantage="preference",
            loss="bradley_terry",
            aggregation="sequence_sum_mean",
            logprob_gap_alarm=0.0,
        ),
        "arXiv:2203.02155, 2307.09288",
    ),
    "raft": Published(
        "Learns from the best completion of each group alone, as from a demonstration.",
        dict(_NO_KL, advantage="best", loss="reinforce", aggregation="token_mean"),
        "arXiv:2304.06767",
    ),
}
"""Algorithms by name. If a paper gives no number, or one for a much larger run, we use the common
value."""
