"""The named algorithms: each a few pieces and their numbers, as published.

Where a paper gives no number, or one for a much larger run, the number is the one in common use.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rl_sync.algorithms.algorithm import Algorithm, check_name
from rl_sync.algorithms.screening import UNBOUNDED

_GRPO = Algorithm(
    name="grpo",
    advantage="grpo",
    loss="ppo_clip",
    proximal="behavior",
    correction="",
    aggregation="sequence_mean",
    discount=1.0,
    gae_lambda=0.95,
    n_steps=4,
    whiten=True,
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=0.0,
    positive_temperature=1.0,
    negative_temperature=1.05,
    mirror_temperature=0.1,
    preference_temperature=0.1,
    weight_limit=2.0,
    token_low=0.5,
    token_high=5.0,
    sequence_low=0.5,
    sequence_high=2.0,
    geometric_low=0.99,
    geometric_high=1.01,
    second_moment=0.04,
    negative_drift=0.05,
    kl_coefficient=0.001,
    kl_target=0.0,
    kl_horizon_steps=100.0,
    kl_estimator="k3",
    kl_place="loss",
    refresh_reference_steps=0,
    entropy_coefficient=0.0,
    expert_rows=0,
    expert_coefficient=0.0,
    overlong_tokens=0,
    mask_truncated=False,
    need_spread=False,
    group_mean_low=-UNBOUNDED,
    group_mean_high=UNBOUNDED,
    max_attempts=1,
    over_sampling=1.0,
    keep="first",
    extremes=0,
    logprob_gap_alarm=0.2,
    allow_unsafe=False,
)


def _made(name: str, **pieces: Any) -> Algorithm:
    """GRPO without a reference model, but for some pieces."""
    return dataclasses.replace(_GRPO, name=name, **{"kl_coefficient": 0.0, **pieces})


_ALGORITHMS = (
    _GRPO,
    _made("dr_grpo", advantage="dr_grpo", aggregation="constant_mean"),
    _made("dapo", aggregation="token_mean", clip_high=0.28, need_spread=True,
          max_attempts=10),
    _made("ppo", advantage="gae", aggregation="token_mean",
          kl_coefficient=0.001, kl_estimator="k1", kl_place="reward"),
    _made("rloo", advantage="rloo", loss="reinforce", aggregation="sequence_sum_mean",
          kl_coefficient=0.001, kl_estimator="k1", kl_place="reward"),
    _made("reinforce_pp", advantage="reinforce_pp", aggregation="token_mean",
          kl_coefficient=0.001, kl_estimator="k1", kl_place="reward"),
    _made("reinforce_pp_baseline", advantage="reinforce_pp_baseline", aggregation="token_mean",
          kl_coefficient=0.001, kl_estimator="k2"),
    _made("remax", advantage="remax", loss="reinforce", aggregation="sequence_sum_mean",
          kl_coefficient=0.001, kl_estimator="k1", kl_place="reward"),
    _made("opo", advantage="opo", loss="reinforce", aggregation="sequence_sum_mean"),
    _made("gspo", loss="gspo", clip_low=3e-4, clip_high=4e-4),
    _made("cispo", loss="cispo", clip_low=1.0, clip_high=3.0, aggregation="token_mean"),
    _made("sapo", loss="sapo"),
    _made("gmpo", loss="gmpo", clip_low=0.4, clip_high=0.4),
    _made("opmd", advantage="dr_grpo", loss="opmd", aggregation="sequence_sum_mean"),
    _made("topr", advantage="dr_grpo", loss="topr", aggregation="sequence_sum_mean"),
    _made("decoupled_ppo", proximal="start", correction="token_truncation",
          aggregation="token_mean", clip_high=0.28),
    _made("m2po", proximal="start", correction="second_moment,token_truncation",
          aggregation="token_mean", clip_high=0.28, weight_limit=5.0),
    _made("dppo", advantage="dr_grpo", loss="dppo", aggregation="token_mean",
          clip_low=0.15, clip_high=0.15, weight_limit=20.0),
    _made("dpo", advantage="pair", loss="dpo", aggregation="sequence_sum_mean"),
    _made("sft", advantage="demonstration", loss="reinforce", aggregation="token_mean",
          logprob_gap_alarm=0.0),
    _made("raft", advantage="best", loss="reinforce", aggregation="token_mean"),
)  # fmt: skip

ALGORITHMS = {algorithm.name: algorithm for algorithm in _ALGORITHMS}
"""By the name that a config uses."""

FRESH, STALE = "grpo", "decoupled_ppo"
"""What is used, if nothing else is asked for, where no data are stale, and where some may be."""


def named(name: str | None, staleness_bound: int) -> Algorithm:
    """The composition of a name, or the one for data of that staleness.

    Raises:
      ValueError: no algorithm has the name.
    """
    if name is None:
        name = STALE if staleness_bound > 0 else FRESH
    check_name("name", name, tuple(ALGORITHMS))
    return ALGORITHMS[name]
