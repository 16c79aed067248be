"""Earlier policies that the trainer keeps to score tokens by the weights that drew them.

With `rollout.score=trainer` the log-probabilities of drawn tokens are not the explorer's, but those
of the trainer's own program with the same weights. Their ratio to the policy's has no difference
between the two programs, only the change of the policy (the gap that arXiv:2510.26788 describes).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl_sync.token_records import NEVER
from rl_sync.types import Params, Rows


class DrawingVersions(NamedTuple):
    """Trained parameters of K earlier versions, newest first, in the dtype of the computation.

    Attributes:
      numbers: number of each version; −1 where there is none yet.
      params: parameters of each.
    """

    numbers: Int[Array, " K"]
    params: tuple[Params, ...]


@dataclasses.dataclass(frozen=True)
class KeptVersions:
    """Versions that tokens of a batch may be drawn by, besides the present weights.

    Attributes:
      interval: number of trainer steps between two published versions.
      start: number of a published version.
      count: maximum number of earlier versions, K.
    """

    interval: int
    start: int
    count: int

    def begin(self, computed: Params) -> DrawingVersions | None:
        """Makes the versions of a start: none; their memory is that of the given parameters."""
        if not self.count:
            return None
        copies = tuple(jax.tree.map(jnp.copy, computed) for _ in range(self.count))
        return DrawingVersions(jnp.full(self.count, -1, jnp.int32), copies)

    def after(
        self, kept: DrawingVersions | None, step: Int[Array, ""], computed: Params
    ) -> DrawingVersions | None:
        """Returns the versions after a step, which adds the weights before it if they are one.

        Args:
          step: number of finished steps before it.
          computed: trained parameters before it.
        """
        if kept is None:
            return None
        published = (step - self.start) % self.interval == 0

        def shift(newer: Array, older: Array) -> Array:
            return jnp.where(published, newer.astype(older.dtype), older)

        newer = (computed, *kept.params[:-1])
        params = tuple(
            jax.tree.map(shift, one, other) for one, other in zip(newer, kept.params, strict=True)
        )
        numbers = shift(jnp.concatenate([step[None], kept.numbers[:-1]]), kept.numbers)
        return DrawingVersions(numbers, params)


class DrawnScores(NamedTuple):
    """Log-probabilities at each token by some weights.

    Attributes:
      logprobs: log-probability of the token.
      sampler: log-probabilities of other tokens there, as in `Rows.sampler_logprobs`; None without
        score centering.
    """

    logprobs: Float[Array, "B T"]
    sampler: Float[Array, "B T outcomes"] | None


def scored(
    rows: Rows,
    present: Int[Array, ""],
    trained: Params,
    kept: DrawingVersions | None,
    score: Callable[[Params], DrawnScores],
    start: DrawnScores | None = None,
) -> tuple[Rows, Float[Array, ""]]:
    """Computes log-probabilities at each token by the weights that drew it.

    A version that drew no token of the batch costs nothing. Tokens of versions that are not kept
    (after a change of the schedule) have the explorer's log-probabilities. If it recorded only
    those of the tokens themselves, all others are improbable, and have no drift.

    Args:
      present, trained: number of the present weights, and their trained parameters.
      score: computes the scores of all tokens by some parameters.
      start: scores by the present weights, if they are known.

    Returns:
      The rows with these log-probabilities, and the mean distance of the explorer's from them; NaN
      without any.
    """
    mask, recorded = rows.completion_mask, rows.behavior_logprobs
    shapes, sampler = jax.eval_shape(score, trained), rows.sampler_logprobs
    if sampler is None and shapes.sampler is not None:
        sampler = jnp.full(shapes.sampler.shape, NEVER, shapes.sampler.dtype)
    found, known = DrawnScores(recorded, sampler), jnp.zeros_like(mask)
    versions: list[tuple[Array, Params]] = [(present, trained)]
    if kept is not None:
        versions += [(kept.numbers[i], params) for i, params in enumerate(kept.params)]

    def nothing(_: Params) -> DrawnScores:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    for place, (number, params) in enumerate(versions):
        drawn = mask & (rows.policy_versions == number)
        if place == 0 and start is not None:
            values = start
        else:
            values = jax.lax.cond(drawn.any(), score, nothing, params)
        found = jax.tree.map(functools.partial(_where, drawn), values, found)
        known = known | drawn
    rows = rows._replace(behavior_logprobs=found.logprobs, sampler_logprobs=found.sampler)
    distance = jnp.where(known, jnp.abs(found.logprobs - recorded), 0.0).sum()
    return rows, jnp.where(known.any(), distance / known.sum(), jnp.nan)


def _where(
    mask: Bool[Array, "B T"], values: Float[Array, "B T ..."], others: Float[Array, "B T ..."]
) -> Float[Array, "B T ..."]:
    return jnp.where(mask.reshape(*mask.shape, *[1] * (values.ndim - 2)), values, others)
