"""Earlier policies that the trainer keeps to score tokens by the weights that drew them.

With `rollout.score=trainer` the log-probabilities of drawn tokens are not the explorer's, but those
of the trainer's own program with the same weights. Their ratio to the policy's has no difference
between the two programs, only the change of the policy (the gap that arXiv:2510.26788 describes).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

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


def scored(
    rows: Rows,
    present: Int[Array, ""],
    trained: Params,
    kept: DrawingVersions | None,
    score: Callable[[Params], Float[Array, "B T"]],
    start: Float[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B T"], Float[Array, ""]]:
    """Computes the log-probability of each token by the weights that drew it.

    A version that drew no token of the batch costs nothing. Tokens of versions that are not kept
    (after a change of the schedule) have the explorer's log-probability.

    Args:
      present, trained: number of the present weights, and their trained parameters.
      score: computes the log-probabilities of all tokens by some parameters.
      start: log-probabilities by the present weights, if they are known.

    Returns:
      The log-probabilities, and the mean distance of the explorer's from them; NaN without any.
    """
    mask, recorded = rows.completion_mask, rows.behavior_logprobs
    found, known = recorded, jnp.zeros_like(mask)
    versions: list[tuple[Array, Params]] = [(present, trained)]
    if kept is not None:
        versions += [(kept.numbers[i], params) for i, params in enumerate(kept.params)]
    for place, (number, params) in enumerate(versions):
        drawn = mask & (rows.policy_versions == number)
        if place == 0 and start is not None:
            values = start
        else:
            values = jax.lax.cond(drawn.any(), score, lambda _: jnp.zeros_like(recorded), params)
        found, known = jnp.where(drawn, values, found), known | drawn
    distance = jnp.where(known, jnp.abs(found - recorded), 0.0).sum()
    return found, jnp.where(known.any(), distance / known.sum(), jnp.nan)
