"""Estimates the memory of a model from shapes, without allocations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import cast

import jax
import jax.numpy as jnp
from jax.extend.core import Var
from jaxtyping import Array

from rl_sync.models import lora
from rl_sync.models.cache import empty_cache, map_with_axes
from rl_sync.models.config import ModelConfig
from rl_sync.models.heads import HEAD, blank_scalar_head, token_scalars
from rl_sync.models.kernels.flash import KERNELS
from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.placement import as_computed_abstract
from rl_sync.models.sharding import Layout, using
from rl_sync.models.transformer import param_shapes
from rl_sync.models.vision.tower import VISION, image_features
from rl_sync.models.vocabulary.token_sets import LOGITS_BYTES
from rl_sync.types import Params


def tree_bytes(tree: Params) -> int:
    """Returns the bytes of all arrays, or of objects with shapes and dtypes."""
    return sum(_bytes(leaf) for leaf in jax.tree.leaves(tree))


def device_bytes(tree: Params) -> int:
    """Returns the bytes of all arrays on one device, from their shapes and shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * jnp.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )


def cache_bytes(config: ModelConfig, rows: int, length: int, layout: Layout) -> int:
    """Returns the bytes of the KV cache on each device, for `rows` rows of `length` tokens."""
    layout = layout.grouped(config.num_kv_heads)
    with using(layout):
        shapes = jax.eval_shape(lambda: empty_cache(config, rows, length))
        return device_bytes(map_with_axes(layout.abstract, shapes))


def activation_bytes(
    config: ModelConfig,
    sizes: tuple[int, int],
    logits_bytes: int = LOGITS_BYTES,
    own_critic: bool = False,
    keeps_inputs: bool = False,
) -> int:
    """Returns the bytes of activations that the forward pass of a loss keeps.

    The loss depends on log-probabilities, or on scores for a model with a scalar head.

    These are the residuals that JAX's differentiation keeps for the backward pass, without
    parameters and tokens. XLA may need less by fusing, or more for temporary values.

    Args:
      sizes: number of rows, and of tokens of a row.
      own_critic: whether a critic with its own model is trained in the same step.
      keeps_inputs: whether what gradients of a frozen base need is kept too, as it is by kernels
        with a derivative of their own.
    """
    tokens = jax.ShapeDtypeStruct(sizes, jnp.int32)
    if config.attention in KERNELS:  # Like `blocks`, kernels keep their inputs.
        config = dataclasses.replace(config, attention="blocks")

    def loss(trained: Sequence[Params], frozen: Params, tokens: Array) -> Array:
        policy, *critic = (lora.join(one, frozen) for one in trained)
        if config.scalar_head:
            return token_scalars(config, policy, tokens).sum()
        logprobs, entropy = token_logprobs(config, policy, tokens, logits_bytes=logits_bytes)
        values = [token_scalars(config, one, tokens).sum() for one in critic]
        return logprobs.sum() + entropy.sum() + sum(values)

    policy = param_shapes(config)
    frozen: Params = {}
    critic = {**policy, HEAD: jax.eval_shape(lambda: blank_scalar_head(config))}
    trained = [policy, critic] if own_critic else [policy]
    if config.lora and not keeps_inputs:
        # Nothing is kept for gradients of the base, which is held as it is computed.
        frozen = as_computed_abstract(config, lora.split(policy)[1])
        trained = [lora.split(one)[0] for one in trained]
    return _residual_bytes(loss, trained, frozen, tokens)


def tower_bytes(config: ModelConfig, tiles: int) -> int:
    """Returns the bytes of activations of the vision tower that are kept for the backward pass.

    Args:
      tiles: number of tiles of images.
    """
    assert config.vision is not None
    side = config.vision.image_size
    pixels = jax.ShapeDtypeStruct((tiles, side, side, 3), jnp.uint8)

    def loss(params: Params, pixels: Array) -> Array:
        return image_features(config, params, pixels).sum()

    return _residual_bytes(loss, {VISION: param_shapes(config)[VISION]}, pixels)


def _residual_bytes(loss: Callable[..., Array], trained: Params, *others: Params) -> int:
    """Returns the bytes that `jax.vjp` closes over, except the function's own arguments and
    constants.

    Args:
      trained: first argument of `loss`, which gets a gradient.
      others: its other arguments.
    """
    traced = jax.make_jaxpr(lambda p, *rest: jax.vjp(lambda q: loss(q, *rest), p)[1])(
        trained, *others
    )
    given = {*traced.jaxpr.invars, *traced.jaxpr.constvars}
    # A kept value is listed once for each use; literals are not variables.
    kept = {var for var in traced.jaxpr.outvars if isinstance(var, Var)}
    return sum(_bytes(cast(jax.ShapeDtypeStruct, var.aval)) for var in kept - given)


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
    return math.prod(leaf.shape) * jnp.dtype(leaf.dtype).itemsize
