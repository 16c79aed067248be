"""Encodes tiles of images: a vision transformer as in SigLIP (arXiv:2303.15343), and its connector.

Letters in shapes: N tiles, P patches of a tile, E width of the tower, A heads, H head dim, M tokens
of a tile, W width of a token's features.
"""

from __future__ import annotations

import math
from typing import cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float, UInt8

from rl_sync.models.config import ModelConfig
from rl_sync.models.layers import ACTIVATIONS, REMAT_POLICIES, UNROLLED_LAYERS, fan_in, param
from rl_sync.models.sharding import constrain
from rl_sync.models.shards import on_shards
from rl_sync.models.vision.vision_config import Vision
from rl_sync.types import Params

VISION, TOWER = "vision", "tower"
"""Names of a model's vision among its parameters, and of the tower in it."""

_SCORES_BYTES = 256 << 20
_CUT = "mlp"
"""Logical axis of the tower's heads: devices share them like the columns of an MLP."""


class TowerNorm(nn.Module):
    """LayerNorm: y = scale · (x − mean(x)) / √(var(x) + ε) + bias, computed in float32."""

    config: Vision

    @nn.compact
    def __call__(self, x: Float[Array, "N P E"]) -> Float[Array, "N P E"]:
        width = (x.shape[-1],)
        scale = param(self, "scale", initializers.ones, width, ("embed",))
        bias = param(self, "bias", initializers.zeros, width, ("embed",))
        wide = x.astype(jnp.float32)
        centered = wide - wide.mean(axis=-1, keepdims=True)
        variance = jnp.square(centered).mean(axis=-1, keepdims=True)
        normed = centered * jax.lax.rsqrt(variance + self.config.norm_eps)
        return (normed * scale.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)


class TowerAttention(nn.Module):
    """Attention from every patch of a tile to all of its patches, with biases."""

    config: Vision

    @nn.compact
    def __call__(self, x: Float[Array, "N P E"]) -> Float[Array, "N P E"]:
        config = self.config
        E, A, H = config.embed_dim, config.num_heads, config.head_dim
        axes = ("embed", _CUT, None, "head_dim")
        qkv = param(self, "qkv", fan_in(E), (E, A, 3, H), axes)
        qkv_bias = param(self, "qkv_bias", initializers.zeros, (A, 3, H), axes[1:])
        out = param(
            self, "out", fan_in(E, config.num_layers), (A, H, E), (_CUT, "head_dim", "embed")
        )
        out_bias = param(self, "out_bias", initializers.zeros, (E,), ("embed",))
        all_three = jnp.einsum("NPE,EATH->NPATH", x, qkv.astype(x.dtype)) + qkv_bias.astype(x.dtype)
        of_device = on_shards(_attend, *[("batch", None, _CUT, "head_dim")] * 3)
        attended = of_device(*(all_three[..., of, :] for of in range(3)))
        y = jnp.einsum("NPAH,AHE->NPE", attended, out.astype(x.dtype))
        return y + out_bias.astype(x.dtype)


def _attend(
    queries: Float[Array, "N P A H"], keys: Float[Array, "N P A H"], values: Float[Array, "N P A H"]
) -> Float[Array, "N P A H"]:
    """Attends to all patches of a tile, with a bounded number of scores at a time."""
    N, P, A, _ = queries.shape
    of_tile = 4 * A * P * P
    if N * of_tile <= _SCORES_BYTES:
        return _attend_all(queries, keys, values)
    # The backward pass computes scores again.
    some = jax.checkpoint(_attend_all)
    tiles = jax.tree.map(lambda x: x[:, None], (queries, keys, values))
    if of_tile <= _SCORES_BYTES:
        together = _SCORES_BYTES // of_tile
        return jax.lax.map(lambda one: some(*one), tiles, batch_size=together)[:, 0]
    least = -(-of_tile // _SCORES_BYTES)
    parts = next(parts for parts in range(least, P + 1) if P % parts == 0)

    def by_parts(one: tuple[Array, Array, Array]) -> Array:
        queries, *others = one
        cut = queries.reshape(parts, 1, P // parts, *queries.shape[2:])
        return jax.lax.map(lambda part: some(part, *others), cut).reshape(queries.shape)

    return jax.lax.map(by_parts, tiles)[:, 0]


def scores_bytes(tiles: int, heads: int, patches: int) -> int:
    """Returns the bytes of the scores that a device has in memory at a time."""
    return min(tiles * 4 * heads * patches**2, _SCORES_BYTES)


def _attend_all(
    queries: Float[Array, "N Q A H"], keys: Float[Array, "N P A H"], values: Float[Array, "N P A H"]
) -> Float[Array, "N Q A H"]:
    scaled = queries * jnp.asarray(queries.shape[-1] ** -0.5, queries.dtype)
    scores = jnp.einsum("NQAH,NPAH->NAQP", scaled, keys, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    return jnp.einsum("NAQP,NPAH->NQAH", weights, values)


class TowerMLP(nn.Module):
    """down(gelu(up(x))), with biases."""

    config: Vision

    @nn.compact
    def __call__(self, x: Float[Array, "N P E"]) -> Float[Array, "N P E"]:
        config = self.config
        E, F = config.embed_dim, config.mlp_dim
        up = param(self, "up", fan_in(E), (E, F), ("embed", "mlp"))
        up_bias = param(self, "up_bias", initializers.zeros, (F,), ("mlp",))
        down = param(self, "down", fan_in(F, config.num_layers), (F, E), ("mlp", "embed"))
        down_bias = param(self, "down_bias", initializers.zeros, (E,), ("embed",))
        hidden = ACTIVATIONS["gelu_tanh"](x @ up.astype(x.dtype) + up_bias.astype(x.dtype))
        return hidden @ down.astype(x.dtype) + down_bias.astype(x.dtype)


class TowerBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): one step of the scan over layers."""

    config: Vision

    @nn.compact
    def __call__(self, x: Float[Array, "N P E"]) -> Float[Array, "N P E"]:
        config = self.config
        normed = TowerNorm(config, name="attention_norm")(x)
        x = x + TowerAttention(config, name="attention")(normed)
        normed = TowerNorm(config, name="mlp_norm")(x)
        x = x + TowerMLP(config, name="mlp")(normed)
        return constrain(x, "batch", None, "embed")


def _run(block: TowerBlock, x: Array) -> tuple[Array, None]:
    """Calls a block; see `rl_sync.models.transformer`."""
    return block(x), None


class Tower(nn.Module):
    """Maps tiles to the features of their tokens."""

    config: ModelConfig

    @nn.compact
    def __call__(self, tiles: UInt8[Array, "N S S 3"]) -> Float[Array, "N M W"]:
        vision = self.config.vision
        assert vision is not None
        E, size = vision.embed_dim, vision.patch_size
        patch_shape = (size, size, 3, E)
        kernel = param(
            self,
            "patch",
            fan_in(math.prod(patch_shape[:3])),
            patch_shape,
            (None, None, None, "embed"),
        )
        bias = param(self, "patch_bias", initializers.zeros, (E,), ("embed",))
        start = initializers.normal(E**-0.5)
        positions = param(self, "positions", start, (vision.patches**2, E), (None, "embed"))
        dtype = self.config.dtype
        pixels = constrain(tiles, "batch").astype(jnp.float32) / 255.0
        patches = _patches(((pixels - 0.5) / 0.5).astype(dtype), size)
        x = patches @ kernel.astype(dtype).reshape(-1, E) + bias.astype(dtype)
        x = constrain(x + positions.astype(dtype), "batch", None, "embed")
        run, remat = _run, self.config.remat
        few = vision.num_layers <= UNROLLED_LAYERS and remat == "none"
        if remat != "none":
            run = nn.remat(_run, prevent_cse=False, policy=REMAT_POLICIES[remat])
        run_all = nn.scan(
            run,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=vision.num_layers,
            unroll=vision.num_layers if few else 1,
            metadata_params={nn.PARTITION_NAME: "layers"},
            check_constancy_invariants=False,
        )
        x, _ = run_all(TowerBlock(vision, name="blocks"), x)
        return _connected(vision, TowerNorm(vision, name="final_norm")(x))


def _patches(pixels: Float[Array, "N S S 3"], size: int) -> Float[Array, "N P K"]:
    """Cuts tiles into patches, row by row; a patch is its pixels in order."""
    count, side = pixels.shape[0], pixels.shape[1] // size
    cut = pixels.reshape(count, side, size, side, size, 3).swapaxes(2, 3)
    return cut.reshape(count, side * side, -1)


def _connected(vision: Vision, x: Float[Array, "N P E"]) -> Float[Array, "N M W"]:
    """Turns each square of patches into the features of one token."""
    count, scale = x.shape[0], vision.scale
    side = vision.patches // scale
    squares = x.reshape(count, side, scale, side, scale, vision.embed_dim)
    if vision.connector == "pooled":
        pooled = squares.astype(jnp.float32).mean(axis=(2, 4)).astype(x.dtype)
        return pooled.reshape(count, vision.tile_tokens, -1)
    return squares.swapaxes(2, 3).reshape(count, vision.tile_tokens, -1)


def image_features(
    config: ModelConfig, params: Params, tiles: UInt8[Array, "N S S 3"]
) -> Float[Array, "N M W"]:
    """Computes the features of tiles, which `rl_sync.models.transformer` takes as `Seen.features`.

    Args:
      config: a config with `vision`.
      params: parameters of the whole model.
      tiles: pixels from 0 to 255, of `image_size` squared.
    """
    applied = Tower(config).apply({"params": params[VISION][TOWER]}, tiles)
    return cast(Array, applied)
