"""The share of values that a step changes: an estimate before the run, from the learning rate.

A step of Adam moves a weight by about the learning rate. What is published is rounded, so a value
changes only if the weight crosses the middle between two neighbours of the published dtype: with a
probability of step / spacing, at most 1. The spacing grows with the weight's magnitude.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from jaxtyping import Float

WORTHWHILE = 0.3
"""Greatest share at which differences are chosen by themselves."""

_DEVIATION = 0.02
"""Standard deviation of a usual model's weights (GPT-2's initializer and most since)."""
_QUANTILES = 4096


def expected_share(
    learning_rate: float, dtype: str, weights: Float[np.ndarray, " sample"] | None = None
) -> float:
    """Estimates the share of published values that one step of Adam changes.

    Args:
      learning_rate: size of a weight's step.
      dtype: the published dtype.
      weights: a sample of the model's weights; by default, normal ones of a usual deviation.
    """
    if weights is None:
        weights = _normal_quantiles()
    magnitude = np.abs(np.asarray(weights, np.float64))
    finfo = ml_dtypes.finfo(dtype)
    smallest = float(finfo.tiny)
    exponent = np.floor(np.log2(np.maximum(magnitude, smallest)))
    spacing = np.exp2(exponent) * float(finfo.eps)
    return float(np.minimum(1.0, learning_rate / spacing).mean())


def _normal_quantiles() -> Float[np.ndarray, " sample"]:
    from scipy.special import ndtri

    return _DEVIATION * ndtri((np.arange(_QUANTILES) + 0.5) / _QUANTILES)
