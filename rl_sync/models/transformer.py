"""Defines a decoder-only transformer in Flax Linen, and pure functions for the rest of the code.

One model serves all families: RMSNorm, RoPE, grouped-query attention, a gated MLP or a mixture of
experts. `ModelConfig` describes the families' differences. Linen stays inside this package: code
outside sees only functions, and `Params`, a plain dict of arrays.

Blocks run under `nn.scan`, so every block parameter has a leading layer axis, and compile time does
not grow with depth. Models of a few layers are unrolled, and decode steps on GPUs: there one CUDA
graph of all layers takes the place of hundreds of launches. Parameters and activations have logical
axis names: batch, length, vocab, embed, heads, kv, head_dim, mlp, layers, experts.

Letters in shapes: B rows, T positions, S key positions, D embed, K kv heads, H head dim, V vocab,
L layers, C experts of a token.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeVar, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers
from jaxtyping import Array, Float, Int, UInt

from rl_sync.models import invariant
from rl_sync.models.attention import Attention, AttentionLayer, Context
from rl_sync.models.balance import (
    balance,
    balanced_order,
    can_balance,
    cut_of,
    put_in_order,
    shards_of,
)
from rl_sync.models.config import HEAD, ModelConfig
from rl_sync.models.layers import (
    REMAT_POLICIES,
    UNROLLED_LAYERS,
    GatedMLP,
    RMSNorm,
    fan_in,
    param,
    rotations,
)
from rl_sync.models.mixture.mixture_layer import MixtureMLP
from rl_sync.models.paging.paged_cache import AnyCache
from rl_sync.models.platform import platform
from rl_sync.models.sharding import constrain, laid_out
from rl_sync.models.vision.projector import Seen, VisionParts, placed, tile_ends
from rl_sync.models.vocabulary.lookup import lookup
from rl_sync.types import Params

_EVERYTHING = np.iinfo(np.int32).max

T = TypeVar("T")

_Carry = tuple[Float[Array, "B T D"], AnyCache | None]
"""Activations between blocks, and the cache that they read and write."""


class Layered(NamedTuple):
    """Values that blocks return beside their output; with a leading layer axis after the scan.

    Attributes:
      cache: keys and values, if a new cache is collected.
      routes: experts of each token, if they are recorded.
    """

    cache: AnyCache | None
    routes: UInt[Array, "L B T C"] | None


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): one step of the scan over layers."""

    config: ModelConfig
    collect: bool
    span: int
    records_routes: bool

    @nn.compact
    def __call__(
        self,
        carry: _Carry,
        layer: AttentionLayer,
        replayed: UInt[Array, "B T C"] | None,
        context: Context,
    ) -> tuple[_Carry, Layered]:
        config, (x, cache) = self.config, carry
        normed = RMSNorm(config, name="attention_norm")(x)
        attention = Attention(config, self.span, self.collect, name="attention")
        attended, fresh = attention(normed, cache, layer, context)
        if config.post_norms:
            attended = RMSNorm(config, name="attention_post_norm")(attended)
        x = x + attended
        normed = RMSNorm(config, name="mlp_norm")(x)
        routes = None
        if config.experts:
            y, routes = MixtureMLP(config, name="mlp")(normed, replayed)
            routes = routes if self.records_routes else None
        else:
            y = GatedMLP(config, decodes=cache is not None, name="mlp")(normed)
        if config.post_norms:
            y = RMSNorm(config, name="mlp_post_norm")(y)
        x = constrain(x + y, "batch", "length", "embed")
        if cache is not None:
            return (x, fresh), Layered(None, routes)
        return (x, None), Layered(fresh, routes)


def _run(
    block: Block,
    carry: _Carry,
    layer: AttentionLayer,
    replayed: UInt[Array, "B T C"] | None,
    context: Context,
) -> tuple[_Carry, Layered]:
    """Calls a block; Linen's transformations get this function instead of the class.

    Linen would derive another class from the class while other threads may be tracing it.
    """
    return block(carry, layer, replayed, context)


class ScalarHead(nn.Module):
    """The parameters of a scalar head, normal with variance 1/(D + 1).

    (Learning to summarize from human feedback, arXiv:2009.01325, appendix B.)
    """

    config: ModelConfig

    @nn.compact
    def __call__(self) -> Float[Array, " D"]:
        width = self.config.embed_dim
        return param(self, "kernel", fan_in(width + 1), (width,), ("embed",))


class Transformer(nn.Module):
    """Maps tokens to normalized hidden states; a given cache is updated and returned.

    Attributes:
      collect: whether keys and values are returned as a new cache if none is given.
      span: number of cache slots to read.
      records_routes: whether the experts of tokens are returned.
    """

    config: ModelConfig
    collect: bool = False
    span: int = 0
    records_routes: bool = False

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        context: Context,
        cache: AnyCache | None,
        replayed: UInt[Array, "L B T C"] | None = None,
        images: Seen | None = None,
    ) -> tuple[Float[Array, "B T D"], Layered]:
        config = self.config
        shape, axes = (config.vocab_size, config.embed_dim), ("vocab", "embed")
        start = initializers.normal(config.embed_dim**-0.5)
        embedding = param(self, "embedding", start, shape, axes)
        if config.scalar_head and self.is_initializing():
            ScalarHead(config, name=HEAD)()  # Used in `rl_sync.models.heads`.
        elif not (config.scalar_head or config.tie_embeddings):
            param(self, "unembedding", start, shape, axes)  # Used in `logits`.
        projected = None
        if config.vision and (images or self.is_initializing()):
            projected = VisionParts(config, name="vision")(images.features if images else None)
        run = _run
        few = config.num_layers <= UNROLLED_LAYERS
        decodes = cache is not None
        unrolled = few and config.remat == "none" and not (decodes or self.collect)
        if decodes and platform() == "gpu":
            # XLA would convert the 8 bits of all layers once, before the loop over steps.
            unrolled = config.quantization is None
        if config.remat != "none" and cache is None:
            run = nn.remat(_run, prevent_cse=False, policy=REMAT_POLICIES[config.remat])
        run_all = nn.scan(
            run,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, 0, nn.broadcast),
            out_axes=0,
            length=config.num_layers,
            unroll=config.num_layers if unrolled else 1,
            metadata_params={nn.PARTITION_NAME: "layers"},
            # The check would trace every block again, to find variables that all layers share.
            check_constancy_invariants=False,
        )
        x = _embedded(config, embedding, tokens)
        if images:
            assert projected is not None, "the model has vision"
            x = placed(x, projected, images.at)
        x = constrain(x, "batch", "length", "embed")
        blocks = Block(config, self.collect, self.span, self.records_routes, name="blocks")
        (x, cache), of_layers = run_all(blocks, (x, cache), _layers(config), replayed, context)
        if cache is not None:
            of_layers = of_layers._replace(cache=cache)
        return RMSNorm(config, name="final_norm")(x), of_layers


def _embedded(
    config: ModelConfig, embedding: Float[Array, "V D"], tokens: Int[Array, "B T"]
) -> Float[Array, "B T D"]:
    if laid_out():
        x = lookup(embedding, tokens, config.dtype)
    else:
        x = embedding[tokens].astype(config.dtype)
    return x * jnp.asarray(config.embed_dim**0.5, x.dtype) if config.scale_embedding else x


def _layers(config: ModelConfig) -> AttentionLayer:
    slides = np.array(config.sliding_layers or (False,) * config.num_layers)
    window = np.where(slides, config.sliding_window, _EVERYTHING).astype(np.int32)
    # Constants: an unrolled scan then has no slices of them.
    index = np.arange(config.num_layers, dtype=np.int32)
    return AttentionLayer(*map(jnp.asarray, (index, window, slides)))


def _context(
    config: ModelConfig,
    positions: Int[Array, "B T"],
    segments: Int[Array, "B T"] | None = None,
    prompts: Int[Array, "B T"] | None = None,
) -> Context:
    return Context(positions, segments, prompts, *rotations(config, positions))


def _init_boxed(config: ModelConfig, key: Array) -> Params:
    zeros = jnp.zeros((1, 1), jnp.int32)
    return Transformer(config).init(key, zeros, _context(config, zeros), None)["params"]


def init_params(config: ModelConfig, key: Array) -> Params:
    """Makes random float32 parameters, as a plain dict of arrays."""
    return nn.unbox(_init_boxed(config, key))


def param_axes(config: ModelConfig) -> Params:
    """Returns the logical axis names of every parameter, as PartitionSpecs, in the tree of
    `init_params`.
    """
    return nn.get_partition_spec(_boxed_like(config))


def param_shapes(config: ModelConfig) -> Params:
    """Returns the shape and the dtype of every parameter, in the tree of `init_params`."""
    is_box = nn.meta.is_axis_metadata
    return jax.tree.map(lambda box: box.value, _boxed_like(config), is_leaf=is_box)


@functools.cache
def _boxed_like(config: ModelConfig) -> Params:
    """Traces the model's initialization; the result is cached, as every use of shapes needs it."""
    return jax.eval_shape(lambda key: _init_boxed(config, key), jax.random.key(0))


def hidden_states(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"] | None = None,
    segments: Int[Array, "B T"] | None = None,
    prompts: Int[Array, "B T"] | None = None,
    routes: UInt[Array, "B T L C"] | None = None,
    images: Seen | None = None,
) -> Float[Array, "B T D"]:
    """Computes the normalized output of the last block, the input of `logits` and of scalar heads.

    Args:
      tokens: rows of one sequence each, padded on the right. With `segments`, a row may hold
        several sequences and padding anywhere.
      positions: index of each token in its sequence; 0 … T − 1 by default.
      segments: sequence that each token belongs to; sequences do not attend to each other. Padding
        is a sequence of its own.
      prompts: number of each prompt of a row, if sequences share prompts: at the prompt's tokens,
        which have a segment below 0, and at the tokens of sequences that continue it.
      routes: experts that tokens go to again; see `rl_sync.token_records`. None to choose all.
      images: images of the rows, for a model with vision; None for text alone.
    """
    at = None if images is None else images.at
    given = (tokens, _positions(tokens, positions), segments, prompts, routes, at)
    given, indices = _balanced(tokens.shape, given)
    tokens, positions, segments, prompts, routes, at = given
    context = _context(config, positions, segments, prompts)._replace(indices=indices)
    if images is not None and at is not None:
        images = images._replace(at=at)
        context = context._replace(ends=_ends(config, images, indices))
    replayed = None
    if routes is not None:
        replayed = constrain(jnp.moveaxis(routes, 2, 0), None, "batch", "length")
    hidden = _apply(Transformer(config), params, tokens, context, None, replayed, images)[0]
    return hidden if indices is None else put_in_order(hidden, "embed")


def _balanced(shape: tuple[int, ...], of_tokens: T) -> tuple[T, Int[Array, "1 T"] | None]:
    """Balances rows [B, T] if devices share them; see `rl_sync.models.balance`.

    Args:
      of_tokens: a pytree of arrays [B, T, …].

    Returns:
      Its arrays, and the index in its row of each token; None if rows stay as they are.
    """
    if not can_balance(shape):
        return of_tokens, None
    order = balanced_order(shape[1], shards_of(cut_of(shape)))
    return jax.tree.map(balance, of_tokens), jnp.asarray(order, jnp.int32)[None]


class Fed(NamedTuple):
    """Results of the tokens that a call feeds to the model.

    Attributes:
      hidden: normalized hidden states.
      cache: their keys and values, or the whole cache after them.
      routes: experts that they went to; None if they are not recorded.
    """

    hidden: Float[Array, "B T D"]
    cache: AnyCache
    routes: UInt[Array, "B T L C"] | None


def prefill(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "B T"],
    records_routes: bool = False,
    images: Seen | None = None,
) -> Fed:
    """Computes the hidden states of rows padded on the right, and their keys and values.

    Args:
      images: see `hidden_states`.
    """
    given = (tokens, _positions(tokens, None), None if images is None else images.at)
    (tokens, positions, at), indices = _balanced(tokens.shape, given)
    context = _context(config, positions)._replace(indices=indices)
    if images is not None and at is not None:
        images = images._replace(at=at)
        context = context._replace(ends=_ends(config, images, indices))
    model = Transformer(config, collect=True, records_routes=records_routes)
    fed = _fed(_apply(model, params, tokens, context, None, images=images))
    if indices is None:
        return fed
    routes = None if fed.routes is None else put_in_order(fed.routes)
    return fed._replace(hidden=put_in_order(fed.hidden, "embed"), routes=routes)


def decode_step(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    cache: AnyCache,
    span: int,
    records_routes: bool = False,
) -> Fed:
    """Decodes a few new tokens a row, and adds their keys and values to the cache.

    Args:
      tokens: consecutive tokens of each row.
      positions: positions of the tokens, which are their slots in the cache; −1 for tokens at the
        end of a row that are not fed: they leave the cache unchanged, and their hidden states are
        meaningless.
      cache: keys and values of all earlier tokens.
      span: number of slots to read, greater than any position. It is a static shape: each value
        compiles once.
    """
    model = Transformer(config, span=span, records_routes=records_routes)
    return _fed(_apply(model, params, tokens, _context(config, positions), cache))


def _fed(applied: tuple[Float[Array, "B T D"], Layered]) -> Fed:
    hidden, (cache, routes) = applied
    assert cache is not None
    return Fed(hidden, cache, None if routes is None else jnp.moveaxis(routes, 0, 2))


def logits(
    config: ModelConfig, params: Params, hidden: Float[Array, "... D"]
) -> Float[Array, "... V"]:
    """Computes float32 next-token logits from hidden states."""
    kernel = output_projection(config, params)
    if not config.batch_invariant:
        return projected(kernel, hidden)
    rows = hidden.reshape(len(hidden), -1, hidden.shape[-1])
    return projected_steadily(kernel, rows).reshape(*hidden.shape[:-1], -1)


def projected_steadily(
    kernel: Float[Array, "V D"], hidden: Float[Array, "B T D"]
) -> Float[Array, "B T V"]:
    """Computes `projected` with the same bits for any number of rows."""
    function = functools.partial(projected, kernel)
    least = invariant.least_rows(kernel.shape[0])
    return invariant.by_many_rows(function, hidden, least, invariant.sharing(hidden))


def projected(kernel: Float[Array, "V D"], hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
    """Computes float32 logits from hidden states by the output projection."""
    return jnp.einsum(
        "...D,VD->...V", hidden, kernel.astype(hidden.dtype), preferred_element_type=jnp.float32
    )


def output_projection(config: ModelConfig, params: Params) -> Float[Array, "V D"]:
    """Returns the matrix that maps hidden states to logits."""
    return params["embedding" if config.tie_embeddings else "unembedding"]


def _positions(tokens: Int[Array, "B T"], given: Int[Array, "B T"] | None) -> Int[Array, "B T"]:
    if given is not None:
        return given
    return jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)


def _ends(
    config: ModelConfig, images: Seen, indices: Int[Array, "1 T"] | None
) -> Int[Array, "B T"] | None:
    """Returns the ends of tiles, if their tokens attend to each other both ways."""
    if config.vision is None:
        raise ValueError("This model has no vision, so it takes no images: use text alone.")
    if not config.vision.both_ways:
        return None
    if indices is None:
        indices = jnp.arange(images.at.shape[1])[None]
    return tile_ends(images.at, indices, config.vision.tile_tokens)


def _apply(
    module: Transformer,
    params: Params,
    tokens: Int[Array, "B T"],
    context: Context,
    cache: AnyCache | None,
    replayed: UInt[Array, "L B T C"] | None = None,
    images: Seen | None = None,
) -> tuple[Array, Layered]:
    applied = module.apply({"params": params}, tokens, context, cache, replayed, images)
    return cast(tuple[Array, Layered], applied)
