"""The loss of a value estimate, a token."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def clipped_value_loss(
    values: Float[Array, "B T"],
    old_values: Float[Array, "B T"],
    returns: Float[Array, "B T"],
    clip: float,
) -> Float[Array, "B T"]:
    """½ · max((V − R)², (clip(V, V_old − ε, V_old + ε) − R)²) (PPO as in Schulman's baselines;
    Engstrom et al. 2020, arXiv:2005.12729, section 2).

    Args:
      old_values: at the start of the step.
      clip: ε.
    """
    clipped = jnp.clip(values, old_values - clip, old_values + clip)
    return 0.5 * jnp.maximum(jnp.square(values - returns), jnp.square(clipped - returns))
