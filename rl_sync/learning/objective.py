"""The objective of a trainer step: a loss with corrections, regularization and reduction.

Letters in shapes: B rows, T positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl_sync.algorithms import aggregation, centering, corrections, diagnostics
from rl_sync.algorithms.algorithm import (
    AGGREGATIONS,
    CORRECTIONS,
    KL_ESTIMATORS,
    LOSSES,
    PROXIMAL,
    Algorithm,
    call,
)
from rl_sync.algorithms.kl import k3
from rl_sync.algorithms.returns import AdvantageEstimate
from rl_sync.algorithms.sequences import OfSequence
from rl_sync.learning.forward import Outputs
from rl_sync.types import Rows

Metrics = dict[str, Float[Array, ""]]
OfTokens = dict[str, Float[Array, "B T"]]
TOKEN_RATIOS, TOKEN_ENTROPIES = "token_ratios", "token_entropies"
"""Names of the per-token figures: π / π_behavior and the entropy, both of the policy before the
update that learns from the token."""
STALENESS_KINDS = 5
QUANTILES = (5, 50, 95)
_LOG_RATIO_LIMIT = 20.0  # Keeps squares of weights finite in the metrics.


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """Settings of the loss, for a task's completions; `Trainer` and its parts share them.

    Attributes:
      algorithm: the settings of the loss.
      group_size: number of trajectories of a group, G.
      max_completion_tokens: maximum number of tokens of a completion, at which it is cut.
      end_ids: tokens that end a completion which was not cut.
      microbatch_rows: number of rows whose activations are in memory at once, a divisor of an
        update's rows if these are more; 0 for all of them.
      outcome_weights: weight of each part of the reward in the outcome; empty if the outcome is the
        whole reward.
      part_weights: weight of each part of the reward; empty if it has one.
    """

    algorithm: Algorithm
    group_size: int
    max_completion_tokens: int
    end_ids: tuple[int, ...]
    microbatch_rows: int
    outcome_weights: tuple[float, ...] = ()
    part_weights: tuple[float, ...] = ()


class BatchExperience(NamedTuple):
    """Rows of a batch, and all figures of their tokens from before the first update of a step.

    Attributes:
      rows: the tokens. Values of tokens outside the completion mask have no effect.
      staleness: staleness of each token, in trainer steps.
      estimate: advantages, and returns if there are values.
      weights: 0 for rows or tokens that the loss excludes, 1 elsewhere.
      proximal_logprobs: logprobs of the policy at the step's start, if the algorithm needs them
        and they differ from the current ones.
      ref_logprobs: logprobs of the reference model, if there is one.
      values: value before each token, by the critic at the step's start, if there is one.
      recorded_logprobs: log-probabilities as the explorer recorded them, if those of `rows` are the
        trainer's.
      proximal_sampler: log-probabilities of the sampler's outcomes by the policy at the step's
        start, if the algorithm needs them and they differ from the current ones.
      teacher_logprobs: logprobs of the teacher, if drawn tokens have advantages from them.
    """

    rows: Rows
    staleness: Int[Array, "B T"]
    estimate: AdvantageEstimate
    weights: OfSequence
    proximal_logprobs: Float[Array, "B T"] | None = None
    ref_logprobs: Float[Array, "B T"] | None = None
    values: Float[Array, "B T"] | None = None
    recorded_logprobs: Float[Array, "B T"] | None = None
    proximal_sampler: Float[Array, "B T outcomes"] | None = None
    teacher_logprobs: Float[Array, "B T"] | None = None

    def named(self) -> dict[str, object]:
        """Returns all fields by the names that the pieces of algorithms use."""
        rows = self.rows
        shape = {"mask": rows.completion_mask, "sequences": rows.sequences}
        return {**self._asdict(), **rows._asdict(), **self.estimate._asdict(), **shape}


class Totals(NamedTuple):
    """Figures of a whole update, which all its rows share.

    Attributes:
      token_count: number of tokens of completions.
      sequence_count: number of trajectories.
      max_tokens: maximum number of tokens of a completion.
      group_size: number of trajectories of a group.
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
    loss: LossConfig,
    experience: BatchExperience,
    sequence_count: int,
    kl_coefficient: Float[Array, ""] | None = None,
) -> Totals:
    """Computes the figures of a whole update.

    Args:
      experience: all rows of the update.
      sequence_count: number of trajectories of the update.
      kl_coefficient: weight of the divergence; None for the algorithm's value.
    """
    algorithm = loss.algorithm
    rows, limit = experience.rows, jnp.zeros(())
    if algorithm.looks_ahead:
        assert experience.proximal_logprobs is not None
        limit = corrections.second_moment_limit(
            experience.proximal_logprobs,
            rows.behavior_logprobs,
            rows.completion_mask,
            algorithm.second_moment,
        )
    return Totals(
        token_count=rows.completion_mask.sum(),
        sequence_count=sequence_count,
        max_tokens=loss.max_completion_tokens,
        group_size=loss.group_size,
        second_moment_limit=limit,
        kl_coefficient=algorithm.kl_coefficient if kl_coefficient is None else kl_coefficient,
    )


def needs_proximal(algorithm: Algorithm, updates: int) -> bool:
    """Says whether a step computes the proximal policy's logprobs before its first update.

    It does if that policy is the one at the step's start, and if the step has several updates or a
    correction needs all rows beforehand. In a single update the current logprobs serve instead.
    """
    return algorithm.proximal == "start" and (updates > 1 or algorithm.looks_ahead)


class TokenLosses(NamedTuple):
    """Losses of tokens.

    Attributes:
      losses: losses, weighted by the corrections.
      weights: product of the corrections' weights.
      proximal: logprobs of the proximal policy.
    """

    losses: Float[Array, "B T"]
    weights: OfSequence | float
    proximal: Float[Array, "B T"]


def token_losses(
    algorithm: Algorithm, given: Mapping[str, object], logprobs: Float[Array, "B T"]
) -> TokenLosses:
    """Computes the loss of each token, with corrections.

    Args:
      given: settings and data by the names that the pieces of algorithms use.
      logprobs: logprobs of the policy, through which gradients flow.
    """
    current = jax.lax.stop_gradient(logprobs)
    named = {**given, "logprobs": current}
    named["old_logprobs"] = proximal = call(PROXIMAL[algorithm.proximal].function, named)
    compared = current if algorithm.proximal == "behavior" else proximal
    weights: OfSequence | float = 1.0
    for name in algorithm.corrections:
        weights = weights * call(CORRECTIONS[name].function, named, logprobs=compared)
    losses = call(LOSSES[algorithm.loss].function, named, logprobs=logprobs)
    return TokenLosses(losses * weights, weights, proximal)


def policy_loss(
    algorithm: Algorithm,
    outputs: Outputs,
    experience: BatchExperience,
    totals: Totals,
    divergence: Float[Array, "B T"] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """Computes the loss of some rows of an update, and metrics that describe it.

    Trajectories that the batch's weights exclude are in no term: neither in that of the policy, nor
    in the divergence and the entropy. Corrections weigh the policy's term alone, and score
    centering subtracts its drift (`rl_sync.algorithms.centering`).

    Every result is a sum divided by constants of the whole update, so the results of its parts add
    up to the total. `summary` combines the metrics of updates into a step's metrics.

    Args:
      outputs: the policy's logprobs and entropy, and its distribution for score centering.
      totals: figures of the whole update.
      divergence: the policy's divergence from its teacher at each token, if the loss has it.
    """
    known, mask = experience, experience.rows.completion_mask
    logprobs, entropy = outputs.logprobs, outputs.entropy
    given = {**vars(algorithm), **totals._asdict(), **known.named()}

    def reduced(values: Float[Array, "B T"]) -> Float[Array, ""]:
        values = jnp.broadcast_to(values, mask.shape)
        return call(AGGREGATIONS[algorithm.aggregation].function, given, values=values)

    found = token_losses(algorithm, given, logprobs)
    losses, of_centering = found.losses, dict[str, Float[Array, "B T"]]()
    if outputs.distribution is not None and known.rows.sampler_logprobs is not None:
        drift, of_centering = _drift(algorithm, given, outputs.distribution, known)
        losses = losses - drift
    policy = reduced(losses * known.weights)
    loss = policy
    if known.ref_logprobs is not None and algorithm.kl_place == "loss":
        kl = KL_ESTIMATORS[algorithm.kl_estimator].function(logprobs, known.ref_logprobs)
        loss = loss + totals.kl_coefficient * reduced(kl * known.weights)
    if divergence is not None:
        loss = loss + algorithm.distillation_coefficient * reduced(divergence * known.weights)
    if algorithm.entropy_coefficient:
        loss = loss - algorithm.entropy_coefficient * reduced(entropy * known.weights)
    current, clips = jax.lax.stop_gradient(logprobs), LOSSES[algorithm.loss].clipped
    compared = {**given, "logprobs": current, "old_logprobs": found.proximal}
    metrics = _metrics(
        known,
        totals,
        current=current,
        proximal=found.proximal,
        entropy=entropy,
        weights=known.weights * found.weights,
        clipped=call(clips.function, compared) if clips else None,
    )
    for name, values in of_centering.items():
        metrics[name] = aggregation.token_mean(values, mask, totals.token_count)
    if known.teacher_logprobs is not None:
        divergence = k3(current, known.teacher_logprobs)
    if divergence is not None:
        metrics["kl_teacher"] = aggregation.token_mean(
            jax.lax.stop_gradient(divergence), mask, totals.token_count
        )
    return loss, {"loss": loss, "policy_loss": policy, **metrics}


def _drift(
    algorithm: Algorithm,
    given: Mapping[str, object],
    distribution: Float[Array, "B T K"],
    known: BatchExperience,
) -> tuple[Float[Array, "B T"], OfTokens]:
    """Computes what score centering subtracts from each token's loss, and figures of the tokens.

    Args:
      given: see `token_losses`.
      distribution: the policy's log-probabilities of the sampler's tokens.
    """

    def losses(policy: Array, sampler: Array, proximal: Array | None) -> Array:
        outcome = {"behavior_logprobs": sampler, "proximal_logprobs": proximal}
        return token_losses(algorithm, {**given, **outcome}, policy).losses

    sampler = known.rows.sampler_logprobs
    assert sampler is not None
    outcomes = centering.outcomes(distribution, sampler, known.proximal_sampler)
    drift, size = centering.drift(losses, distribution, outcomes)
    return drift, {
        "score_drift": size,
        "sampler_distance": centering.total_variation(outcomes),
    }


def of_tokens(logprobs: Float[Array, "B T"], entropy: Float[Array, "B T"], rows: Rows) -> OfTokens:
    """Computes the figures of each token; figures outside the completion mask have no meaning."""
    log_ratio = _log_ratio(jax.lax.stop_gradient(logprobs), rows.behavior_logprobs)
    return {
        TOKEN_RATIOS: jnp.exp(log_ratio),
        TOKEN_ENTROPIES: jax.lax.stop_gradient(entropy),
    }


def _log_ratio(current: Float[Array, "B T"], behavior: Float[Array, "B T"]) -> Float[Array, "B T"]:
    return jnp.clip(current - behavior, -_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)


def _metrics(
    known: BatchExperience,
    totals: Totals,
    current: Float[Array, "B T"],
    proximal: Float[Array, "B T"],
    entropy: Float[Array, "B T"],
    weights: OfSequence,
    clipped: Bool[Array, "B T"] | None,
) -> Metrics:
    """Computes metrics, each a sum divided by constants of the whole update.

    Args:
      current, proximal: logprobs of these policies.
      clipped: mask of the tokens that the loss clips; None if it clips none.
    """
    behavior, mask = known.rows.behavior_logprobs, known.rows.completion_mask
    log_ratio = _log_ratio(current, behavior)
    recorded = behavior if known.recorded_logprobs is None else known.recorded_logprobs
    is_fresh = known.staleness == 0

    def mean(values: Array) -> Float[Array, ""]:
        values = jnp.broadcast_to(values, mask.shape)
        return aggregation.token_mean(values, mask, totals.token_count)

    metrics = {
        "entropy": mean(entropy),
        "kl_behavior_proximal": mean(k3(behavior, proximal)),
        "kl_proximal_current": mean(k3(proximal, current)),
        "mask_fraction": mean(weights == 0),
        "logprob_gap": mean(jnp.abs(log_ratio)),
        "mismatch": mean(jnp.where(is_fresh, jnp.abs(current - recorded), 0.0)),
        "fresh_fraction": mean(is_fresh),
        "weight_mean": mean(jnp.exp(log_ratio)),
        "weight_square": mean(jnp.exp(2 * log_ratio)),
        "ratio_counts": diagnostics.log_ratio_counts(
            log_ratio, mask, known.staleness, STALENESS_KINDS
        ),
    }
    clipped = jnp.zeros(mask.shape, bool) if clipped is None else clipped
    metrics |= {
        "clip_fraction": mean(clipped),
        "clip_fraction_low": mean(clipped & (current < proximal)),
        "clip_fraction_high": mean(clipped & (current > proximal)),
    }
    if known.ref_logprobs is not None:
        metrics["kl_reference"] = mean(k3(current, known.ref_logprobs))
    return metrics


def summary(of_updates: dict[str, Array]) -> Metrics:
    """Combines the metrics of updates into those of a step: means, with four exceptions.

    logprob_gap is that of the first update, before which the step has changed nothing. So is
    mismatch, over the tokens that the present weights drew; NaN if there are none.
    effective_sample_share is computed from the unbounded weights π / π_behavior.
    ratio_p5_staleness_0 and similar names are percentiles of π / π_behavior over the tokens of one
    staleness; the last staleness includes all greater ones.

    Args:
      of_updates: metrics as `policy_loss` returns them, with a leading axis of updates.
    """
    means = {name: values.mean(axis=0) for name, values in of_updates.items()}
    counts = means.pop("ratio_counts")
    share = diagnostics.effective_sample_share(means.pop("weight_mean"), means.pop("weight_square"))
    first = {name: values[0] for name, values in of_updates.items()}
    means |= {"logprob_gap": first["logprob_gap"], "effective_sample_share": share}
    fresh = first["fresh_fraction"]
    means["mismatch"] = jnp.where(fresh > 0, first["mismatch"] / fresh, jnp.nan)
    del means["fresh_fraction"]
    for percent in QUANTILES:
        quantiles = diagnostics.ratio_quantile(counts, percent / 100)
        for staleness in range(STALENESS_KINDS):
            means[f"ratio_p{percent}_staleness_{staleness}"] = quantiles[staleness]
    return means
