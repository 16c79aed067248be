"""The per-token loss of a value estimate, and the quality of the estimate."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rl_sync.algorithms.masking import Mask, centered, masked_sum


def clipped_value_loss(
    values: Float[Array, "B T"],
    old_values: Float[Array, "B T"],
    returns: Float[Array, "B T"],
    clip: float,
) -> Float[Array, "B T"]:
    """½ · max((V − R)², (clip(V, V_old − ε, V_old + ε) − R)²) (PPO as in Schulman's baselines;
    Engstrom et al. 2020, arXiv:2005.12729, section 2).

    Args:
      old_values: values at the start of the step.
      clip: ε.
    """
    clipped = jnp.clip(values, old_values - clip, old_values + clip)
    return 0.5 * jnp.maximum(jnp.square(values - returns), jnp.square(clipped - returns))


def is_value_clipped(
    values: Float[Array, "B T"],
    old_values: Float[Array, "B T"],
    returns: Float[Array, "B T"],
    clip: float,
) -> Bool[Array, "B T"]:
    """Marks tokens where `clipped_value_loss` has no gradient: the value has moved far enough."""
    clipped = jnp.clip(values, old_values - clip, old_values + clip)
    return jnp.square(clipped - returns) > jnp.square(values - returns)


def explained_variance(
    values: Float[Array, "B T"], returns: Float[Array, "B T"], mask: Mask
) -> Float[Array, ""]:
    """1 − Var(R − V) / Var(R) over all tokens under the mask: 1 if the values equal the returns, 0
    if all values are equal; NaN if all returns are equal.
    """
    count = jnp.maximum(jnp.sum(mask), 1)

    def variance(of: Float[Array, "B T"]) -> Float[Array, ""]:
        return masked_sum(jnp.square(centered(of, mask)), mask) / count

    whole = variance(returns)
    return jnp.where(whole > 0, 1 - variance(returns - values) / whole, jnp.nan)
