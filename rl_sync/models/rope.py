"""Rotary position embedding (RoFormer, arXiv:2104.09864)."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rl_sync.models.config import ModelConfig, RopeScaling


class Rotation(NamedTuple):
    """Cosines and sines of RoPE's angles at the positions of a call."""

    cos: Float[Array, "B T H/2"]
    sin: Float[Array, "B T H/2"]


def frequencies(
    head_dim: int, base: float, scaling: RopeScaling | None
) -> Float[np.ndarray, " H/2"]:
    """Computes θ^(−2i/H), i = 0 … H/2 − 1 (eq. 15), stretched as `scaling` says."""
    plain = base ** -(np.arange(0, head_dim, 2) / head_dim)
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    turns = scaling.original_max_length * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return kept * plain + (1 - kept) * plain / scaling.factor


def rotations(
    config: ModelConfig, positions: Int[Array, "B T"]
) -> tuple[Rotation, Rotation | None]:
    """Computes the rotations of ordinary layers, and of sliding layers if they differ."""
    everywhere = _rotation(
        frequencies(config.head_dim, config.rope_base, config.rope_scaling), positions
    )
    if config.local_rope_base is None:
        return everywhere, None
    local = frequencies(config.head_dim, config.local_rope_base, None)
    return everywhere, _rotation(local, positions)


def _rotation(by: Float[np.ndarray, " H/2"], positions: Int[Array, "B T"]) -> Rotation:
    angles = positions[..., None] * jnp.asarray(by, jnp.float32)
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x: Float[Array, "B T ... H"], by: Rotation) -> Float[Array, "B T ... H"]:
    """Rotates the pair (x_i, x_{i + H/2}) by the i-th angle of each position."""
    missing = tuple(range(2, x.ndim - 1))
    cos, sin = jnp.expand_dims(by.cos, missing), jnp.expand_dims(by.sin, missing)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
