"""Changes that make published algorithms of GRPO, which the defaults of `Algorithm` are.

Where a paper gives no number, or one for a much larger run, the number is the one in common use.
"""

from __future__ import annotations

from typing import Any

_NO_KL: dict[str, Any] = {"kl_coefficient": 0.0}
_KL_IN_REWARD: dict[str, Any] = {"kl_estimator": "k1", "kl_place": "reward"}

PUBLISHED: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": dict(_NO_KL, advantage="dr_grpo", aggregation="constant_mean"),
    "dapo": dict(_NO_KL, aggregation="token_mean", clip_high=0.28, need_spread=True,
                 max_attempts=10),
    "ppo": dict(_KL_IN_REWARD, advantage="gae", aggregation="token_mean"),
    "rloo": dict(_KL_IN_REWARD, advantage="rloo", loss="reinforce",
                 aggregation="sequence_sum_mean"),
    "reinforce_pp": dict(_KL_IN_REWARD, advantage="reinforce_pp", aggregation="token_mean"),
    "reinforce_pp_baseline": dict(kl_estimator="k2", advantage="reinforce_pp_baseline",
                                  aggregation="token_mean"),
    "remax": dict(_KL_IN_REWARD, advantage="remax", loss="reinforce",
                  aggregation="sequence_sum_mean"),
    "opo": dict(_NO_KL, advantage="opo", loss="reinforce", aggregation="sequence_sum_mean"),
    "gspo": dict(_NO_KL, loss="gspo", clip_low=3e-4, clip_high=4e-4),
    "cispo": dict(_NO_KL, loss="cispo", clip_low=1.0, clip_high=3.0, aggregation="token_mean"),
    "sapo": dict(_NO_KL, loss="sapo"),
    "gmpo": dict(_NO_KL, loss="gmpo", clip_low=0.4, clip_high=0.4),
    "opmd": dict(_NO_KL, advantage="dr_grpo", loss="opmd", aggregation="sequence_sum_mean"),
    "topr": dict(_NO_KL, advantage="dr_grpo", loss="topr", aggregation="sequence_sum_mean"),
    "decoupled_ppo": dict(_NO_KL, proximal="start", correction="token_truncation",
                          aggregation="token_mean", clip_high=0.28),
    "m2po": dict(_NO_KL, proximal="start", correction="second_moment,token_truncation",
                 aggregation="token_mean", clip_high=0.28, weight_limit=5.0),
    "dppo": dict(_NO_KL, advantage="dr_grpo", loss="dppo", aggregation="token_mean",
                 clip_low=0.15, clip_high=0.15, weight_limit=20.0),
    "dpo": dict(_NO_KL, advantage="pair", loss="dpo", aggregation="sequence_sum_mean"),
    "sft": dict(_NO_KL, advantage="demonstration", loss="reinforce", aggregation="token_mean",
                logprob_gap_alarm=0.0),
    "reward_model": dict(_NO_KL, advantage="preference", loss="bradley_terry",
                         aggregation="sequence_sum_mean", logprob_gap_alarm=0.0),
    "raft": dict(_NO_KL, advantage="best", loss="reinforce", aggregation="token_mean"),
}  # fmt: skip
"""By the name that a config uses."""
