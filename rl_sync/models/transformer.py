"""A decoder-only transformer in Flax Linen: RMSNorm, RoPE, grouped-query attention, SwiGLU.

Linen stays inside this module. The rest of the code sees `Params`, a plain dict of arrays, and
three functions: `init_params`, `apply_model`, `token_logprobs`.

Blocks run under `nn.scan`, so every block parameter has a leading layer axis and compile time
does not grow with depth. Parameters and activations carry logical axis names: batch, length,
vocab, embed, heads, kv, head_dim, mlp, layers.

Letters in shapes: B rows, T positions, S key positions, D embed, K kv heads, N query heads (in
einsums, those that share a kv head), H head dim, F mlp, V vocab, L layers.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn import initializers
from jax.nn.initializers import Initializer
from jaxtyping import Array, Bool, Float, Int

from rl_sync.models.config import ModelConfig
from rl_sync.types import Params

_MASKED = -1e30


class KVCache(NamedTuple):
    """Keys and values of the tokens seen so far; the token at position s is in slot s.

    Attributes:
      keys, values: of all layers; without the layer axis inside a block.
    """

    keys: Float[Array, "L B K S H"]
    values: Float[Array, "L B K S H"]


class Rotation(NamedTuple):
    """Cosines and sines of RoPE's angles at the positions of a call."""

    cos: Float[Array, "B T H/2"]
    sin: Float[Array, "B T H/2"]


def rotation(config: ModelConfig, positions: Int[Array, "B T"]) -> Rotation:
    """The angles position · θ^(−2i/H), i = 0 … H/2 − 1 (RoFormer, arXiv:2104.09864, eq. 15)."""
    exponents = jnp.arange(0, config.head_dim, 2) / config.head_dim
    angles = positions[..., None] * config.rope_base**-exponents
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x: Float[Array, "B T ... H"], by: Rotation) -> Float[Array, "B T ... H"]:
    """Turns the pair (x_i, x_{i + H/2}) by the i-th angle of each position."""
    missing = tuple(range(2, x.ndim - 1))
    cos, sin = jnp.expand_dims(by.cos, missing), jnp.expand_dims(by.sin, missing)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def _param(
    module: nn.Module,
    name: str,
    init: Initializer,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
) -> Array:
    """A parameter of a module, with its logical axis names."""
    return cast(Array, module.param(name, nn.with_logical_partitioning(init, axes), shape))


class RMSNorm(nn.Module):
    """y = scale · x / √(mean(x²) + ε), computed in float32."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        scale = _param(self, "scale", initializers.ones, (self.config.embed_dim,), ("embed",))
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        normed = wide * jax.lax.rsqrt(mean_square + self.config.norm_eps)
        return (normed * scale).astype(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention. Query, key and value share one kernel, grouped by kv head."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        cache: KVCache | None,
        by: Rotation,
        positions: Int[Array, "B T"],
    ) -> tuple[Float[Array, "B T D"], KVCache | None]:
        config = self.config
        D, K, N, H = config.embed_dim, config.num_kv_heads, config.heads_per_kv, config.head_dim
        fused = _param(
            self,
            "qkv",
            initializers.variance_scaling(1.0, "fan_in", "normal", in_axis=0, out_axis=(1, 2, 3)),
            (D, K, N + 2, H),
            ("embed", "kv", None, "head_dim"),
        )
        out = _param(
            self,
            "out",
            initializers.variance_scaling(
                1.0 / (2 * config.num_layers), "fan_in", "normal", in_axis=(0, 1, 2), out_axis=3
            ),
            (K, N, H, D),
            ("kv", None, "head_dim", "embed"),
        )
        qkv = jnp.einsum("BTD,DKNH->BTKNH", x, fused.astype(x.dtype))
        queries = rotate(qkv[..., :N, :], by)
        keys = rotate(qkv[..., N, :], by)
        values = qkv[..., N + 1, :]
        if cache is None:
            keys, values = keys.swapaxes(1, 2), values.swapaxes(1, 2)
        else:
            keys, values = cache = write(cache, keys, values, positions)
        # A token attends to the slots of its own and earlier positions: padding is to the right,
        # so it is never among them, and neither is a slot that was not written yet.
        slots = jnp.arange(keys.shape[2])
        visible = slots <= positions[:, None, None, :, None]
        attended = attend(queries, keys, values, visible)
        return jnp.einsum("BTKNH,KNHD->BTD", attended, out.astype(x.dtype)), cache


def write(
    cache: KVCache,
    keys: Float[Array, "B T K H"],
    values: Float[Array, "B T K H"],
    positions: Int[Array, "B T"],
) -> KVCache:
    """Puts one layer's new keys and values into the slots of their positions."""
    rows = jnp.arange(keys.shape[0])[:, None]
    return KVCache(
        cache.keys.at[rows, :, positions].set(keys.astype(cache.keys.dtype)),
        cache.values.at[rows, :, positions].set(values.astype(cache.values.dtype)),
    )


def attend(
    queries: Float[Array, "B T K N H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    visible: Bool[Array, "B 1 1 T S"],
) -> Float[Array, "B T K N H"]:
    """softmax(q·kᵀ / √H) · v over the visible slots; the softmax is in float32."""
    scores = jnp.einsum("BTKNH,BKSH->BKNTS", queries, keys, preferred_element_type=jnp.float32) * (
        queries.shape[-1] ** -0.5
    )
    weights = jax.nn.softmax(jnp.where(visible, scores, _MASKED), axis=-1)
    return jnp.einsum("BKNTS,BKSH->BTKNH", weights.astype(values.dtype), values)


class GatedMLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) · up(x)). Gate and up share one kernel."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        config = self.config
        gate_up = _param(
            self,
            "gate_up",
            initializers.variance_scaling(1.0, "fan_in", "normal", in_axis=0, out_axis=(1, 2)),
            (config.embed_dim, 2, config.mlp_dim),
            ("embed", None, "mlp"),
        )
        down = _param(
            self,
            "down",
            initializers.variance_scaling(1.0 / (2 * config.num_layers), "fan_in", "normal"),
            (config.mlp_dim, config.embed_dim),
            ("mlp", "embed"),
        )
        both = jnp.einsum("BTD,DEF->BTEF", x, gate_up.astype(x.dtype))
        hidden = jax.nn.silu(both[..., 0, :]) * both[..., 1, :]
        return jnp.einsum("BTF,FD->BTD", hidden, down.astype(x.dtype))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). A step of the scan over layers."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        cache: KVCache | None,
        by: Rotation,
        positions: Int[Array, "B T"],
    ) -> tuple[Float[Array, "B T D"], KVCache | None]:
        normed = RMSNorm(self.config, name="attention_norm")(x)
        attended, cache = Attention(self.config, name="attention")(normed, cache, by, positions)
        x = x + attended
        x = x + GatedMLP(self.config, name="mlp")(RMSNorm(self.config, name="mlp_norm")(x))
        return nn.with_logical_constraint(x, ("batch", "length", "embed")), cache


class Transformer(nn.Module):
    """Tokens in, next-token logits out, with the cache handed through when there is one."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, tokens: Int[Array, "B T"], positions: Int[Array, "B T"], cache: KVCache | None
    ) -> tuple[Float[Array, "B T V"], KVCache | None]:
        config = self.config
        embedding = _param(
            self,
            "embedding",
            initializers.normal(config.embed_dim**-0.5),
            (config.vocab_size, config.embed_dim),
            ("vocab", "embed"),
        )
        block = nn.remat(Block, prevent_cse=False) if config.remat and cache is None else Block
        blocks = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast),
            out_axes=0,
            length=config.num_layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        x = embedding[tokens].astype(config.dtype)
        x = nn.with_logical_constraint(x, ("batch", "length", "embed"))
        x, cache = blocks(config, name="blocks")(x, cache, rotation(config, positions), positions)
        x = RMSNorm(config, name="final_norm")(x)
        if not config.tie_embeddings:
            embedding = _param(
                self,
                "unembedding",
                initializers.normal(config.embed_dim**-0.5),
                (config.vocab_size, config.embed_dim),
                ("vocab", "embed"),
            )
        logits = jnp.einsum(
            "BTD,VD->BTV", x, embedding.astype(x.dtype), preferred_element_type=jnp.float32
        )
        return nn.with_logical_constraint(logits, ("batch", "length", "vocab")), cache


def _init_boxed(config: ModelConfig, key: Array) -> Any:
    zeros = jnp.zeros((1, 1), jnp.int32)
    return Transformer(config).init(key, zeros, zeros, None)["params"]


def init_params(config: ModelConfig, key: Array) -> Params:
    """Draws random float32 parameters: a plain dict of arrays."""
    return nn.unbox(_init_boxed(config, key))


def param_axes(config: ModelConfig) -> Params:
    """The logical axis names of every parameter, as PartitionSpecs in the tree of `init_params`."""
    boxed = jax.eval_shape(lambda key: _init_boxed(config, key), jax.random.key(0))
    return nn.get_partition_spec(boxed)


def empty_cache(config: ModelConfig, batch_size: int, length: int) -> KVCache:
    """A cache of `length` slots a row."""
    shape = (config.num_layers, batch_size, config.num_kv_heads, length, config.head_dim)
    return KVCache(jnp.zeros(shape, config.dtype), jnp.zeros(shape, config.dtype))


def apply_model(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"] | None = None,
    cache: KVCache | None = None,
) -> tuple[Float[Array, "B T V"], KVCache | None]:
    """Next-token logits (float32), and the cache with the tokens' keys and values written to it.

    Args:
      tokens: rows, padded on the right.
      positions: each token's place in its row; 0 … T − 1 when left out.
      cache: what earlier calls returned, or `empty_cache`; without one, tokens see each other only.
    """
    if positions is None:
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    applied = Transformer(config).apply({"params": params}, tokens, positions, cache)
    return cast(tuple[Array, KVCache | None], applied)


def token_logprobs(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "B T"],
    temperature: float = 1.0,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """log π(token | earlier tokens) of every token, and the entropy of what it was drawn from.

    Args:
      tokens: rows, padded on the right with id 0.
      temperature: divides the logits, as it did when the tokens were sampled.

    Returns:
      (logprobs, entropy) in float32 and nats; entry t belongs to `tokens[:, t]`, entry 0, which
      nothing precedes, is 0. Entries at padding mean nothing: mask them.
    """
    logits, _ = apply_model(config, params, tokens[:, :-1])
    scores = jax.nn.log_softmax(logits / temperature, axis=-1)
    logprobs = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
    entropy = -jnp.sum(jnp.exp(scores) * scores, axis=-1)
    first = ((0, 0), (1, 0))
    return jnp.pad(logprobs, first), jnp.pad(entropy, first)
