"""Puts images into sequences: projects features of tiles to embeddings of their tokens.

Letters in shapes: B rows, T positions, N tiles, M tokens of a tile, W width of a token's features,
D embed.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.models.config import ModelConfig
from rl_sync.models.layers import RMSNorm, fan_in, param
from rl_sync.models.sharding import constrain
from rl_sync.models.vision.tower import TOWER, Tower


class Seen(NamedTuple):
    """Images of a batch's rows.

    Attributes:
      features: features of all tiles of the batch, from `rl_sync.models.vision.tower`.
      at: for each token, the number of its features, M · tile + offset in the tile; −1 at text. The
        tokens of a tile are contiguous and in order. Rows may use the same tile.
    """

    features: Float[Array, "N M W"]
    at: Int[Array, "B T"]


class Projector(nn.Module):
    """Maps features to embeddings: a matrix, after an RMSNorm if features are pooled (Gemma 3)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, features: Float[Array, "N M W"]) -> Float[Array, "N M D"]:
        config, vision = self.config, self.config.vision
        assert vision is not None
        x = constrain(features, "batch").astype(config.dtype)
        if vision.connector == "pooled":
            like_gemma = dataclasses.replace(config, norm_offset=1.0, norm_eps=vision.norm_eps)
            x = RMSNorm(like_gemma, name="norm")(x)
        shape = (vision.feature_width, config.embed_dim)
        kernel = param(self, "kernel", fan_in(shape[0]), shape, (None, "embed"))
        return constrain(x @ kernel.astype(x.dtype), "batch")


class VisionParts(nn.Module):
    """The parameters of a model's vision: `tower` and `projector`. A call projects features."""

    config: ModelConfig

    @nn.compact
    def __call__(self, features: Float[Array, "N M W"] | None) -> Float[Array, "N M D"]:
        vision = self.config.vision
        assert vision is not None
        if self.is_initializing():
            blank = jnp.zeros((1, vision.image_size, vision.image_size, 3), jnp.uint8)
            features = Tower(self.config, name=TOWER)(blank)
        assert features is not None
        return Projector(self.config, name="projector")(features)


def placed(
    embeddings: Float[Array, "B T D"], projected: Float[Array, "N M D"], at: Int[Array, "B T"]
) -> Float[Array, "B T D"]:
    """Replaces the embeddings of images' tokens by projected features."""
    table = constrain(projected.reshape(-1, projected.shape[-1]), None, None)
    images = constrain(table[jnp.maximum(at, 0)], "batch", "length", "embed")
    return jnp.where((at >= 0)[..., None], images, embeddings)


def tile_ends(
    at: Int[Array, "B T"], indices: Int[Array, "B T"], tile_tokens: int
) -> Int[Array, "B T"]:
    """Returns the index in its row of the last token of each token's tile; −1 at text.

    Args:
      indices: index of each token in its row; a single row of them may serve all rows.
    """
    ends = indices + tile_tokens - 1 - at % tile_tokens
    return jnp.where(at >= 0, jnp.minimum(ends, at.shape[1] - 1), -1)
