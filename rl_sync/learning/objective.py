"""What a trainer step minimizes: a named loss, corrected, regularized and reduced.

Letters in shapes: B rows, T positions.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl_sync.algorithms import aggregation, corrections, diagnostics
from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.algorithms.kl import k3
from rl_sync.algorithms.pieces import (
    AGGREGATIONS,
    CORRECTIONS,
    KL_ESTIMATORS,
    LOSSES,
    PROXIMAL,
    call,
)
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
    if algorithm.looks_ahead:
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
    return algorithm.proximal == "start" and (updates > 1 or algorithm.looks_ahead)


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
        return call(AGGREGATIONS[algorithm.aggregation], given, values=values)

    current = jax.lax.stop_gradient(logprobs)
    given = {**vars(algorithm), **totals._asdict(), **known._asdict(), "logprobs": current}
    given["old_logprobs"] = proximal = call(PROXIMAL[algorithm.proximal], given)
    compared = current if algorithm.proximal == "behavior" else proximal
    weights = known.weights
    for name in algorithm.corrections:
        weights = weights * call(CORRECTIONS[name].function, given, logprobs=compared)
    piece = LOSSES[algorithm.loss]
    policy = reduced(call(piece.function, given, logprobs=logprobs) * weights)
    loss = policy
    if known.ref_logprobs is not None and algorithm.kl_place == "loss":
        kl = KL_ESTIMATORS[algorithm.kl_estimator](logprobs, known.ref_logprobs)
        loss = loss + totals.kl_coefficient * reduced(kl)
    if algorithm.entropy_coefficient:
        loss = loss - algorithm.entropy_coefficient * reduced(entropy)
    clipped = call(piece.clipped, given) if piece.clipped else None
    metrics = _metrics(
        known,
        totals,
        current=current,
        proximal=proximal,
        entropy=entropy,
        weights=weights,
        clipped=clipped,
    )
    return loss, {"loss": loss, "policy_loss": policy, **metrics}


def _metrics(
    known: Experience,
    totals: Totals,
    current: Float[Array, "B T"],
    proximal: Float[Array, "B T"],
    entropy: Float[Array, "B T"],
    weights: OfSequence,
    clipped: Bool[Array, "B T"] | None,
) -> Metrics:
    """Sums over constants of the whole update.

    Args:
      current, proximal: logprobs of these policies.
      clipped: whether the loss bounds a token, where it does so at all.
    """
    behavior, mask = known.behavior_logprobs, known.mask
    log_ratio = jnp.clip(current - behavior, -_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)

    def mean(values: Array) -> Float[Array, ""]:
        values = jnp.broadcast_to(values, mask.shape)
        return aggregation.token_mean(values, mask, totals.token_count)

    metrics = {
        "entropy": mean(entropy),
        "kl_behavior_proximal": mean(k3(behavior, proximal)),
        "kl_proximal_current": mean(k3(proximal, current)),
        "mask_fraction": mean(weights == 0),
        "logprob_gap": mean(jnp.abs(log_ratio)),
        "weight_mean": mean(jnp.exp(log_ratio)),
        "weight_square": mean(jnp.exp(2 * log_ratio)),
        "ratio_counts": diagnostics.log_ratio_counts(
            log_ratio, mask, known.staleness, STALENESS_KINDS
        ),
        "clip_fraction": jnp.zeros(()) if clipped is None else mean(clipped),
    }
    if known.ref_logprobs is not None:
        metrics["kl_reference"] = mean(k3(current, known.ref_logprobs))
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
