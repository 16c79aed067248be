"""Metrics of what flows through a run: completions, weights, time."""

from __future__ import annotations

from rl_sync.records.metric_tables.metric import Metric, Threshold

LENGTHS = (
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

STALENESS = (
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

TIMES = (
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

RELIABILITY = (
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

DRAFTS = (
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

WEIGHTS = (
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
