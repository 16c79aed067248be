"""Measures of how far off-policy a batch is, as sums over parts of the batch."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rl_sync.algorithms.masking import Mask

_DISTANCES = np.geomspace(1e-3, 5.0, 30)
LOG_RATIO_EDGES = np.concatenate([-_DISTANCES[::-1], _DISTANCES])
"""Edges of the bins: fine around 0, where most ratios are; values that round to 0 share one bin."""


def effective_sample_share(
    mean_weight: Float[Array, ""], mean_square: Float[Array, ""]
) -> Float[Array, ""]:
    """(Σw)² / (n Σw²): the effective sample size of weighted samples, as a share of n (Kong 1992).

    Args:
      mean_weight, mean_square: means of w and w².
    """
    return jnp.square(mean_weight) / jnp.maximum(mean_square, jnp.finfo(jnp.float32).tiny)


def log_ratio_counts(
    log_ratios: Float[Array, "B T"], mask: Mask, kinds: Int[Array, "B T"], count: int
) -> Float[Array, "kinds bins"]:
    """Counts the tokens of each kind by the bin of the logarithm of their ratio.

    Args:
      kinds: 0 to count − 1; greater values count as the last kind.
    """
    # A matmul of one-hot comparisons, since accelerators are slow at adding to bins.
    is_of = jnp.clip(kinds, 0, count - 1)[..., None] == jnp.arange(count)
    is_of = jnp.where(mask[..., None], is_of, False).astype(jnp.float32)
    edges = jnp.asarray(LOG_RATIO_EDGES, log_ratios.dtype)
    is_above = (log_ratios[..., None] > edges).astype(jnp.float32)
    above = jnp.einsum("BTK,BTE->KE", is_of, is_above)
    everything = is_of.sum(axis=(0, 1))[:, None]
    return jnp.concatenate([everything, above], axis=1) - jnp.pad(above, ((0, 0), (0, 1)))


def ratio_quantile(counts: Float[Array, "kinds bins"], share: float) -> Float[Array, " kinds"]:
    """The quantile of a kind's ratios, as exact as the bins are; NaN for a kind without tokens."""
    cumulative = jnp.cumsum(counts, axis=1)
    total = cumulative[:, -1:]
    index = jnp.argmax(cumulative >= share * total, axis=1)
    edges = jnp.asarray(LOG_RATIO_EDGES, counts.dtype)
    low, high = edges[jnp.maximum(index - 1, 0)], edges[jnp.minimum(index, len(edges) - 1)]
    inside = jnp.take_along_axis(counts, index[:, None], axis=1)[:, 0]
    upto = jnp.take_along_axis(cumulative, index[:, None], axis=1)[:, 0]
    part = 1 - (upto - share * total[:, 0]) / jnp.maximum(inside, 1e-9)
    quantile = jnp.exp(low + part * (high - low))
    return jnp.where(total[:, 0] > 0, quantile, jnp.nan)
