"""What a trainer step minimizes: a named loss, corrected, regularized and reduced.

Letters in shapes: B rows, T positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl_sync.algorithms import (
    aggregation,
    corrections,
    diagnostics,
    losses,
    preference,
    sequence_losses,
)
from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.algorithms.kl import KL_ESTIMATORS
from rl_sync.algorithms.proximal import interpolated_logprobs
from rl_sync.algorithms.sequences import OfSequence, Sequences

Metrics = dict[str, Float[Array, ""]]
STALENESS_KINDS = 5
QUANTILES = (5, 50, 95)
_LOG_RATIO_LIMIT = 20.0  # Keeps squares of weights finite in the metrics.


class Experience(NamedTuple):
    """What is known of some rows' tokens before an update.

    Attributes:
      mask: true at the completions' tokens: what `logprobs` and `advantages` say of others does not
        matter.
      behavior_logprobs: of the policy that drew the tokens.
      proximal_logprobs: of the policy at the step's start, where the algorithm asks for them and
        they are not the current ones anyway.
      ref_logprobs: of the reference model, if there is one.
      advantages, weights: see `Credit`.
      staleness: of each token, in trainer steps.
      sequences: see `rl_sync.algorithms.sequences`.
      values: before each token, of the critic at the step's start, if there is one.
      returns: see `Credit`.
    """

    mask: Bool[Array, "B T"]
    behavior_logprobs: Float[Array, "B T"]
    proximal_logprobs: Float[Array, "B T"] | None
    ref_logprobs: Float[Array, "B T"] | None
    advantages: OfSequence
    weights: OfSequence
    staleness: Int[Array, "B T"]
    sequences: Sequences
    values: Float[Array, "B T"] | None = None
    returns: Float[Array, "B T"] | None = None


class Totals(NamedTuple):
    """What the rows of an update have in common.

    Attributes:
      token_count: true entries of the mask.
      sequence_count: trajectories.
      max_tokens: the most tokens of a completion.
      group_size: trajectories of a group.
      second_moment_limit: see `corrections.second_moment_limit`; 0 without that correction.
      kl_coefficient: weight of the divergence from the reference model.
    """

    token_count: Int[Array, ""]
    sequence_count: int
    max_tokens: int
    group_size: int
    second_moment_limit: Float[Array, ""]
    kl_coefficient: Float[Array, ""] | float


def totals(
    algorithm: Algorithm,
    experience: Experience,
    sequence_count: int,
    max_tokens: int,
    group_size: int,
    kl_coefficient: Float[Array, ""] | None = None,
) -> Totals:
    """What all rows of an update have in common.

    Args:
      kl_coefficient: None for the algorithm's.
    """
    limit = jnp.zeros(())
    if "second_moment" in algorithm.corrections:
        assert experience.proximal_logprobs is not None
        limit = corrections.second_moment_limit(
            experience.proximal_logprobs,
            experience.behavior_logprobs,
            experience.mask,
            algorithm.second_moment,
        )
    weight = algorithm.kl_coefficient if kl_coefficient is None else kl_coefficient
    return Totals(experience.mask.sum(), sequence_count, max_tokens, group_size, limit, weight)


def needs_proximal(algorithm: Algorithm, updates: int) -> bool:
    """Whether logprobs at the start of a step are to be computed before its updates.

    With one update they are the current ones, unless something looks at all rows beforehand.
    """
    later = updates > 1 or "second_moment" in algorithm.corrections
    return algorithm.proximal == "start" and later


class _Terms(NamedTuple):
    """What a policy loss is a function of."""

    logprobs: Float[Array, "B T"]
    old_logprobs: Float[Array, "B T"]
    advantages: OfSequence
    mask: Bool[Array, "B T"]
    sequences: Sequences


LOSSES: dict[str, Callable[[Algorithm, _Terms], Array]] = {
    "reinforce": lambda a, t: losses.reinforce(t.logprobs, t.advantages),
    "ppo_clip": lambda a, t: losses.ppo_clip(
        t.logprobs, t.old_logprobs, t.advantages, a.clip_low, a.clip_high, a.dual_clip or None
    ),
    "cispo": lambda a, t: losses.cispo(*t[:3], a.clip_low, a.clip_high),
    "sapo": lambda a, t: losses.sapo(*t[:3], a.positive_temperature, a.negative_temperature),
    "dppo": lambda a, t: losses.dppo(*t[:3], a.clip_low, a.clip_high, a.weight_limit),
    "gspo": lambda a, t: sequence_losses.gspo(*t[:4], a.clip_low, a.clip_high, t.sequences),
    "gmpo": lambda a, t: sequence_losses.gmpo(*t[:4], a.clip_low, a.clip_high, t.sequences),
    "topr": lambda a, t: sequence_losses.topr(*t),
    "opmd": lambda a, t: sequence_losses.opmd(*t[:4], a.mirror_temperature, t.sequences),
}
"""By name: the loss of each token."""

CLIPPED: dict[str, Callable[[Algorithm, _Terms], Array]] = {
    "ppo_clip": lambda a, t: losses.is_clipped(*t[:3], a.clip_low, a.clip_high),
    "cispo": lambda a, t: losses.is_outside(*t[:2], a.clip_low, a.clip_high),
    "dppo": lambda a, t: losses.has_left(*t[:3], a.clip_low, a.clip_high),
    "gspo": lambda a, t: losses.is_clipped(
        sequence_losses.gspo_logprobs(t.logprobs, t.old_logprobs, t.mask, t.sequences),
        jnp.zeros_like(t.logprobs),
        t.advantages,
        a.clip_low,
        a.clip_high,
    ),
    "gmpo": lambda a, t: losses.is_clipped(
        *t[:3], -math.expm1(-a.clip_low), math.expm1(a.clip_high)
    ),
}
"""Whether the loss bounds a token, where it does so at all."""

CORRECTIONS: dict[str, Callable[[Algorithm, _Terms, Totals], Array]] = {
    "token_truncation": lambda a, t, n: corrections.truncated_token_weights(*t[:2], a.weight_limit),
    "sequence_truncation": lambda a, t, n: corrections.truncated_sequence_weights(
        *t[:2], t.mask, a.weight_limit, t.sequences
    ),
    "token_mask": lambda a, t, n: corrections.token_mask(*t[:2], a.token_low, a.token_high),
    "sequence_rejection": lambda a, t, n: corrections.sequence_rejection(
        *t[:2], t.mask, a.sequence_low, a.sequence_high, t.sequences
    ),
    "geometric_rejection": lambda a, t, n: corrections.geometric_rejection(
        *t[:2], t.mask, a.geometric_low, a.geometric_high, t.sequences
    ),
    "second_moment": lambda a, t, n: corrections.second_moment_mask(*t[:2], n.second_moment_limit),
    "negative_sequence_mask": lambda a, t, n: corrections.negative_sequence_mask(
        *t[:4], a.negative_drift, t.sequences
    ),
}
"""By name: the weight of each token; `old_logprobs` are those of the behavior policy."""

AGGREGATIONS: dict[str, Callable[[Array, Array, Totals, Sequences], Array]] = {
    "token_mean": lambda x, mask, n, s: aggregation.token_mean(x, mask, n.token_count),
    "sequence_mean": lambda x, mask, n, s: aggregation.sequence_mean(x, mask, n.sequence_count, s),
    "sequence_sum_mean": lambda x, mask, n, s: aggregation.sequence_sum_mean(
        x, mask, n.sequence_count
    ),
    "constant_mean": lambda x, mask, n, s: aggregation.constant_mean(
        x, mask, n.max_tokens, n.sequence_count
    ),
}
"""By name: one number from the values of tokens."""


def policy_loss(
    algorithm: Algorithm,
    logprobs: Float[Array, "B T"],
    entropy: Float[Array, "B T"],
    experience: Experience,
    totals: Totals,
) -> tuple[Float[Array, ""], Metrics]:
    """The loss of some rows of an update, and what describes it.

    All that is returned is a sum over constants of the whole update, so the results for parts of an
    update add up to that for the whole. `summary` makes the metrics of a step of those of updates.

    Args:
      totals: of the whole update.
    """
    known, mask = experience, experience.mask

    def reduced(values: Float[Array, "B T"]) -> Float[Array, ""]:
        values = jnp.broadcast_to(values, mask.shape)
        return AGGREGATIONS[algorithm.aggregation](values, mask, totals, known.sequences)

    current = jax.lax.stop_gradient(logprobs)
    proximal = _proximal(algorithm, current, known)
    terms = _Terms(logprobs, proximal, known.advantages, mask, known.sequences)
    compared = current if algorithm.proximal == "behavior" else proximal
    weights = known.weights
    for name in algorithm.corrections:
        drawn = terms._replace(logprobs=compared, old_logprobs=known.behavior_logprobs)
        weights = weights * CORRECTIONS[name](algorithm, drawn, totals)
    if algorithm.loss == "dpo":
        of_tokens = _preference(algorithm, terms, known, totals)
    else:
        of_tokens = LOSSES[algorithm.loss](algorithm, terms)
    policy = reduced(of_tokens * weights)
    loss = policy
    if known.ref_logprobs is not None and algorithm.kl_place == "loss":
        kl = KL_ESTIMATORS[algorithm.kl_estimator](logprobs, known.ref_logprobs)
        loss = loss + totals.kl_coefficient * reduced(kl)
    if algorithm.entropy_coefficient:
        loss = loss - algorithm.entropy_coefficient * reduced(entropy)
    metrics = _metrics(algorithm, terms, entropy, weights, known, totals)
    return loss, {"loss": loss, "policy_loss": policy, **metrics}


def _preference(
    algorithm: Algorithm, terms: _Terms, known: Experience, totals: Totals
) -> Float[Array, "B T"]:
    """The loss of the pairs in some rows, which are those of whole groups."""
    assert known.ref_logprobs is not None
    # Rows of several trajectories are all of an update.
    count = known.mask.shape[0] if known.sequences is None else totals.sequence_count
    return preference.dpo_of_groups(
        terms.logprobs,
        known.ref_logprobs,
        terms.advantages,
        terms.mask,
        algorithm.preference_temperature,
        totals.group_size,
        count,
        terms.sequences,
    )


def _proximal(
    algorithm: Algorithm, current: Float[Array, "B T"], known: Experience
) -> Float[Array, "B T"]:
    """What the loss's ratio is taken to."""
    if algorithm.proximal == "behavior":
        return known.behavior_logprobs
    if algorithm.proximal == "interpolated":
        return interpolated_logprobs(current, known.behavior_logprobs, known.staleness)
    return current if known.proximal_logprobs is None else known.proximal_logprobs


def _metrics(
    algorithm: Algorithm,
    terms: _Terms,
    entropy: Float[Array, "B T"],
    weights: OfSequence,
    known: Experience,
    totals: Totals,
) -> Metrics:
    """Sums over constants of the whole update."""
    terms, behavior = jax.lax.stop_gradient(terms), known.behavior_logprobs
    log_ratio = jnp.clip(terms.logprobs - behavior, -_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    k3 = KL_ESTIMATORS["k3"]

    def mean(values: Array) -> Float[Array, ""]:
        values = jnp.broadcast_to(values, terms.mask.shape)
        return aggregation.token_mean(values, terms.mask, totals.token_count)

    metrics = {
        "entropy": mean(entropy),
        "kl_behavior_proximal": mean(k3(behavior, terms.old_logprobs)),
        "kl_proximal_current": mean(k3(terms.old_logprobs, terms.logprobs)),
        "mask_fraction": mean(weights == 0),
        "logprob_gap": mean(jnp.abs(log_ratio)),
        "weight_mean": mean(jnp.exp(log_ratio)),
        "weight_square": mean(jnp.exp(2 * log_ratio)),
        "ratio_counts": diagnostics.log_ratio_counts(
            log_ratio, terms.mask, known.staleness, STALENESS_KINDS
        ),
    }
    clipped = CLIPPED.get(algorithm.loss)
    metrics["clip_fraction"] = mean(clipped(algorithm, terms)) if clipped else jnp.zeros(())
    if known.ref_logprobs is not None:
        metrics["kl_reference"] = mean(k3(terms.logprobs, known.ref_logprobs))
    return metrics


def summary(of_updates: dict[str, Array]) -> Metrics:
    """The metrics of a step, from those of its updates: means but for

    logprob_gap, of the first update alone, before which the step has changed nothing;
    effective_sample_share, of weights π / π_behavior without bounds;
    ratio_p5_staleness_0, and the others: what so many percent of the tokens of a staleness do not
    exceed with π / π_behavior; the last staleness stands for all from it on.

    Args:
      of_updates: as `policy_loss` returns them, with a leading axis of updates.
    """
    means = {name: values.mean(axis=0) for name, values in of_updates.items()}
    counts = means.pop("ratio_counts")
    share = diagnostics.effective_sample_share(means.pop("weight_mean"), means.pop("weight_square"))
    means |= {"logprob_gap": of_updates["logprob_gap"][0], "effective_sample_share": share}
    for percent in QUANTILES:
        quantiles = diagnostics.ratio_quantile(counts, percent / 100)
        for staleness in range(STALENESS_KINDS):
            means[f"ratio_p{percent}_staleness_{staleness}"] = quantiles[staleness]
    return means
