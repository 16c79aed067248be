"""Dynamic loss scaling, without which small gradients vanish in float16.

The loss is multiplied by a scale before the backward pass, and the gradient is divided by it
afterwards (Micikevicius et al., arXiv:1710.03740). The scale is halved when a gradient overflows,
and doubled after many updates without that.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl_sync.learning.objective import Metrics

START = 2.0**15
LEAST = 1.0
GREATEST = 2.0**127
DOUBLED_AFTER = 2000
"""Updates in a row with finite gradients, after which the scale is doubled."""
NORMS = ("gradient_norm", "critic_gradient_norm")
"""Metrics that are infinite or NaN if a gradient is."""


class LossScale(NamedTuple):
    """State of the loss scaling.

    Attributes:
      scale: factor on the loss.
      finite_updates: number of updates with finite gradients since the scale changed.
      overflows: number of updates that were skipped because the scale was too high.
    """

    scale: Float[Array, ""]
    finite_updates: Int[Array, ""]
    overflows: Int[Array, ""]


def first_scale(dtype: str) -> LossScale | None:
    """Returns the state before the first update; None for dtypes that need no scaling.

    Args:
      dtype: dtype of the computation.
    """
    if dtype != "float16":
        return None
    return LossScale(jnp.float32(START), jnp.int32(0), jnp.int32(0))


def next_scale(
    before: LossScale, has_loss: Bool[Array, ""], has_gradient: Bool[Array, ""]
) -> tuple[LossScale, Bool[Array, ""]]:
    """Returns the state after an update, and whether the update's gradient overflowed.

    If there is no finite loss, or the scale is 1 already, the scale is not the reason for a
    gradient that is not finite.

    Args:
      has_loss: whether there was a loss, and it was finite.
      has_gradient: whether its gradient was finite.
    """
    overflows = has_loss & ~has_gradient & (before.scale > LEAST)
    finite_updates = before.finite_updates + (has_loss & has_gradient)
    grows = finite_updates >= DOUBLED_AFTER
    scale = jnp.where(grows, jnp.minimum(before.scale * 2, GREATEST), before.scale)
    scale = jnp.where(overflows, jnp.maximum(before.scale / 2, LEAST), scale)
    after = LossScale(
        scale=scale,
        finite_updates=jnp.where(grows | overflows, 0, finite_updates),
        overflows=before.overflows + overflows,
    )
    return after, overflows


def without_overflows(of_updates: dict[str, Array]) -> dict[str, Array]:
    """Replaces the norms of gradients that overflowed by the mean of the step's other updates.

    Args:
      of_updates: metrics of updates, with a leading axis of updates; `overflows`, which is removed,
        is true where the update's gradient overflowed.
    """
    overflows = of_updates["overflows"]
    left = {name: values for name, values in of_updates.items() if name != "overflows"}
    for name in NORMS:
        if name in left:
            others = jnp.nanmean(jnp.where(overflows, jnp.nan, left[name]))
            left[name] = jnp.where(overflows, others, left[name])
    return left


def metrics_of(after: LossScale | None) -> Metrics:
    """Returns the metrics of a step, given the state after it."""
    if after is None:
        return {}
    return {"loss_scale": after.scale, "loss_scale_skips": after.overflows.astype(jnp.float32)}
