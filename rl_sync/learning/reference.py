"""The reference model: its refreshes, and the weight of the policy's divergence from it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.algorithms.kl import adapted_coefficient
from rl_sync.learning.objective import Metrics
from rl_sync.learning.train_state import TrainState
from rl_sync.models.placement import put
from rl_sync.models.sharding import Layout
from rl_sync.types import Params


def refreshed(algorithm: Algorithm, before: TrainState, trained: Params) -> Params | None:
    """Returns the reference's own parameters after a step; it shares the policy's frozen ones.

    Args:
      before: the state before the step.
      trained: the policy's trained parameters after it.
    """
    every_steps = algorithm.refresh_reference_steps
    if not every_steps or before.ref_params is None:
        return before.ref_params
    due = (before.step + 1) % every_steps == 0
    return jax.tree.map(
        lambda new, old: jnp.where(due, new.astype(old.dtype), old), trained, before.ref_params
    )


def first_coefficient(algorithm: Algorithm, layout: Layout) -> Float[Array, ""] | None:
    """Returns the weight of the divergence at the start of RL; None if it never changes."""
    if not algorithm.adapts_kl:
        return None
    return put(jnp.float32(algorithm.kl_coefficient), layout.repeated)


def next_coefficient(
    algorithm: Algorithm, before: TrainState, metrics: Metrics, learns: Bool[Array, ""]
) -> Float[Array, ""] | None:
    """Returns the weight of the divergence after a step.

    It stays the same if the policy did not learn or the divergence is not finite.

    Args:
      before: the state before the step.
      metrics: metrics of the step.
      learns: whether the policy learned.
    """
    if before.kl_coefficient is None:
        return None
    target, horizon = algorithm.kl_target, algorithm.kl_horizon_steps
    after = adapted_coefficient(before.kl_coefficient, metrics["kl_reference"], target, horizon)
    return jnp.where(learns & jnp.isfinite(after), after, before.kl_coefficient)
