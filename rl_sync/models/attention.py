"""Computes grouped-query attention: the Linen module, and the functions that attend.

Letters in shapes: B rows, T positions, S key positions, D embed, K kv heads, N query heads that
share a kv head, H head dim, L layers, C slots of a page.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn import initializers
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from rl_sync.models.balance import cut_of, ordered, put_in_order, shards_of
from rl_sync.models.blocks import (
    MASKED,
    QKV,
    AskingTokens,
    BlockCall,
    Tokens,
    as_tokens,
    attend_by_blocks,
    nothing_seen,
    visible,
    with_keys,
)
from rl_sync.models.cache import (
    CacheSlots,
    KVCache,
    cache_axes,
    cached,
    read_lines,
    read_page,
    read_span,
    reads_by_pages,
    write,
)
from rl_sync.models.config import LoraTarget, ModelConfig
from rl_sync.models.invariant import KEYS
from rl_sync.models.kernels.decode import attend_and_write, decodes_by_kernel
from rl_sync.models.kernels.flash import (
    SHORTEST_ROW,
    AttentionCall,
    attend_by,
    attend_to_rows,
    kernel_for,
)
from rl_sync.models.layers import (
    Adapter,
    Kernel,
    RMSNorm,
    Rotation,
    fan_in,
    kernel,
    param,
    project,
    rotate,
)
from rl_sync.models.lines import attend_to_lines, attend_to_some_lines, in_lines
from rl_sync.models.paging.paged_cache import (
    AnyCache,
    PagedCache,
    page_axes,
    read_row_lines,
    read_row_page,
    read_row_span,
    write_paged,
)
from rl_sync.models.paging.ragged import attend_by_kernel
from rl_sync.models.platform import has_flash_units, platform
from rl_sync.models.sharding import GROUP, HEADS, constrain, cuts_positions, in_use, kv_group
from rl_sync.models.shards import Cut, on_shards
from rl_sync.models.slot_shares import PartialAttention, combined, positions_of, shares

_QUERIES = ("batch", "length", "kv", HEADS)
_KEYS = ("batch", "length", "kv")
_ASKING = ("batch", "length")
_TOKENS = ("batch",)


class AttentionLayer(NamedTuple):
    """Properties of one layer that its attention depends on.

    Inside the scan over layers each is a scalar, outside a vector over the layers.

    Attributes:
      number: number of the layer, from 0.
      window: number of newest tokens that a token attends to, itself included.
      slides: whether the layer uses the local RoPE.
    """

    number: Int[Array, " L"]
    window: Int[Array, " L"]
    slides: Bool[Array, " L"]


class Context(NamedTuple):
    """Inputs that all blocks of a call share.

    Attributes:
      positions: position of each token in its own sequence.
      segments: sequence that each token of a row belongs to; None if each row is one sequence.
      prompts: see `hidden_states`; None if no sequences share a prompt.
      everywhere: RoPE of ordinary layers, and of sliding layers if `local` is None.
      local: RoPE of sliding layers; None if they use the same RoPE.
      indices: index of each token in its row, if rows are balanced; see `rl_sync.models.balance`.
        None if tokens are in the order of rows.
      ends: index in its row of the last token of the tile that a token belongs to, −1 at text;
        tokens of one tile attend to each other both ways. None if no tokens do.
    """

    positions: Int[Array, "B T"]
    segments: Int[Array, "B T"] | None
    prompts: Int[Array, "B T"] | None
    everywhere: Rotation
    local: Rotation | None
    indices: Int[Array, "1 T"] | None = None
    ends: Int[Array, "B T"] | None = None


class Attention(nn.Module):
    """softmax(q·kᵀ)·v. Query, key and value share one kernel, grouped by kv head.

    With a cache, a call writes its tokens to the cache and attends to the cache. Without a cache,
    it attends to the call's own tokens.

    Attributes:
      span: number of cache slots to read.
      collect: whether a call without a cache returns its keys and values as a new cache.
    """

    config: ModelConfig
    span: int
    collect: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        cache: AnyCache | None,
        layer: AttentionLayer,
        context: Context,
    ) -> tuple[Float[Array, "B T D"], AnyCache | None]:
        config = self.config
        D, K, N, H = config.embed_dim, config.num_kv_heads, config.heads_per_kv, config.head_dim
        axes = ("embed", "kv", None, "head_dim")
        weights = kernel(self, config, "qkv", fan_in(D), shape=(D, K, N + 2, H), axes=axes)
        out = kernel(
            self,
            config,
            "out",
            fan_in(K * N * H, config.num_layers),
            shape=(K, N, H, D),
            axes=("kv", "heads", "head_dim", "embed"),
            inputs=(0, 1, 2),
        )
        bias = None
        if config.qkv_bias:
            bias = param(self, "qkv_bias", initializers.zeros, (K, N + 2, H), axes[1:])
        qkv, by = self._project(x, weights, bias), _rotation_of(layer, context)
        fresh: AnyCache | None = None
        if cache is not None and x.shape[1] == 1 and decodes_by_kernel(config):
            where = context.positions[:, 0], layer.number, layer.window
            attended, fresh = attend_and_write(config, qkv, by, cache, *where)
        else:
            qkv = QKV(rotate(qkv.queries, by), rotate(qkv.keys, by), qkv.values)
            if cache is None:
                if self.collect:
                    fresh = _collected(config, qkv.keys, qkv.values, context)
                attended = attend(config, qkv, layer, context)
            else:
                fresh = _written(cache, layer.number, qkv, context.positions)
                attended = attend_cached(
                    config, qkv.queries, fresh, layer=layer, context=context, span=self.span
                )
        y = project(config, attended, out, inputs=3)
        if config.lora:
            adapter = Adapter(config, {"o": ((D,), ("embed",))}, inputs=3, name="out_lora")
            y = y + adapter(attended)["o"]
        return y, fresh

    def _project(self, x: Float[Array, "B T D"], weights: Kernel, bias: Array | None) -> QKV:
        """Computes queries, keys and values before their rotation."""
        config, axes = self.config, ("embed", "kv", None, "head_dim")
        N = config.heads_per_kv
        deltas = self._adapt_qkv(x) if config.lora else {}

        def project_by(
            weights: Kernel, bias: Array | None, *, targets: tuple[LoraTarget, ...]
        ) -> Array:
            y = project(config, x, weights)
            if bias is not None:
                y = y + bias.astype(x.dtype)
            return y + jnp.concatenate([deltas[of] for of in targets], axis=-2) if deltas else y

        stored = weights, bias
        if kv_group() == 1:
            qkv = project_by(*stored, targets=("q", "k", "v"))
            queries, keys, values = qkv[..., :N, :], qkv[..., N, :], qkv[..., N + 1, :]
        else:
            own = jax.tree.map(lambda x: _own_heads(x[..., :N, :], axes[-x.ndim :]), stored)
            queries = project_by(*own, targets=("q",))
            rest = jax.tree.map(lambda x: x[..., N:, :], stored)
            both = project_by(*rest, targets=("k", "v"))
            keys, values = both[..., 0, :], both[..., 1, :]
        if config.qk_norm:
            queries = RMSNorm(config, axis="head_dim", name="query_norm")(queries)
            keys = RMSNorm(config, axis="head_dim", name="key_norm")(keys)
        return QKV(queries, keys, values)

    def _adapt_qkv(self, x: Float[Array, "B T D"]) -> dict[LoraTarget, Array]:
        config = self.config
        K, N, H = config.num_kv_heads, config.heads_per_kv, config.head_dim
        one = ((K, 1, H), ("kv", None, "head_dim"))
        targets: dict[LoraTarget, tuple[tuple[int, ...], tuple[str | None, ...]]]
        targets = {"q": ((K, N, H), ("kv", "heads", "head_dim")), "k": one, "v": one}
        return Adapter(config, targets, name="qkv_lora")(x)


def _collected(
    config: ModelConfig, keys: Float[Array, "B T K H"], values: Float[Array, "B T K H"], of: Context
) -> KVCache:
    """Builds the cache of one layer, of whole rows in their order."""
    if of.indices is not None:
        keys, values = (put_in_order(x, "kv", "head_dim") for x in (keys, values))
    if cuts_positions():
        keys, values = (constrain(x, "batch", None, "kv", "head_dim") for x in (keys, values))
    return cached(config, keys, values)


def _written(
    cache: AnyCache, layer: Int[Array, ""], of: QKV, positions: Int[Array, "B T"]
) -> AnyCache:
    """Writes keys and values to a cache, one token of each row after the other.

    Some layouts keep several tokens in one place, where one write would undo another.
    """
    for t in range(positions.shape[1]):
        new = of.keys[:, t], of.values[:, t], positions[:, t]
        if isinstance(cache, PagedCache):
            cache = write_paged(cache, layer, *new)
        else:
            cache = write(cache, layer, *new)
    return cache


def _own_heads(x: Float[Array, "... N H"], axes: tuple[str | None, ...]) -> Float[Array, "... N H"]:
    """Slices what all devices of a group hold, so that each computes its own query heads."""
    cut = tuple(HEADS if axis is None else axis for axis in axes)
    # Without the first constraint the slice's gradient would travel from device to device.
    return constrain(constrain(x, *axes), *cut)


def _rotation_of(layer: AttentionLayer, context: Context) -> Rotation:
    if context.local is None:
        return context.everywhere
    return jax.tree.map(
        lambda local, other: jnp.where(layer.slides, local, other),
        context.local,
        context.everywhere,
    )


def attend(
    config: ModelConfig, qkv: QKV, layer: AttentionLayer, context: Context
) -> Float[Array, "B T K N H"]:
    """Attends within a call: each token to itself and to earlier tokens of its own sequence.

    A prompt that a sequence shares with other sequences counts as part of the sequence. Tokens of a
    tile may also attend to later ones of the tile; see `Context`.
    """
    shape = qkv.queries.shape
    call = AttentionCall.of(
        config,
        shape[1],
        packed=context.segments is not None,
        shared=context.prompts is not None,
        both_ways=context.ends is not None,
    )
    kernel = kernel_for(config, call)
    if kernel and not cuts_positions() and not config.batch_invariant:
        by_kernel = attend_by(kernel, config, call)
        run = on_shards(by_kernel, _QUERIES, _KEYS, _KEYS, _TOKENS, ())
        return run(*qkv, context.segments, layer.slides)
    indices = jnp.arange(shape[1])[None] if context.indices is None else context.indices
    # A shared prompt may be at another distance in the row than in the sequence.
    positions = indices if context.prompts is None else context.positions
    tokens = Tokens(positions, context.segments, context.prompts, context.ends)
    if (
        config.attention == "blocks"
        or config.batch_invariant
        or cuts_positions()
        or (config.attention == "auto" and platform() != "cpu")
    ):
        of_rows = _RowAttention(
            config,
            cut_of(shape),
            context.indices is not None,
            call if kernel == "splash" else None,
        )
        of_tokens: list[Cut] = [*[_ASKING] * len(tokens), *map(_whole_rows, tokens)]
        run = on_shards(of_rows.attend, _QUERIES, _KEYS, _KEYS, (), (), _ASKING, *of_tokens)
        of_layer = layer.window, layer.slides
        return run(*qkv, *of_layer, indices, *tokens, *tokens)
    return _attend_all(config, qkv, visible(tokens, tokens, layer.window))


def _whole_rows(x: Int[Array, "B T"] | None) -> PartitionSpec:
    """Returns the sharding of whole rows, on the devices that have parts of these rows."""
    return PartitionSpec() if x is None else PartitionSpec(in_use().cuts(_ASKING, x.shape)[0])


class _RowAttention(NamedTuple):
    """Attention from a device's positions to those of whole rows.

    Attributes:
      config: model config.
      cut: mesh axes along which devices have other positions.
      balanced: whether rows are balanced.
      splash: the call if the splash kernel supports it; None to attend by blocks.
    """

    config: ModelConfig
    cut: tuple[str, ...]
    balanced: bool
    splash: AttentionCall | None

    def attend(
        self,
        queries: Float[Array, "B T K N H"],
        keys: Float[Array, "B T K H"],
        values: Float[Array, "B T K H"],
        window: Int[Array, ""],
        slides: Bool[Array, ""],
        indices: Int[Array, "1 T"],
        *tokens: Int[Array, "B T"] | None,
    ) -> Float[Array, "B T K N H"]:
        """Attends from queries of a device.

        Args:
          indices: index in its row of each token of the device.
          tokens: the fields of `Tokens`, first of the device's tokens, then of whole rows.
        """
        config, cut, balanced, splash = self
        if cut:
            keys, values = (_gathered(x, cut) for x in (keys, values))
        fields = len(tokens) // 2
        asking, asked = as_tokens(tokens[:fields]), as_tokens(tokens[fields:])
        if balanced:
            in_order = functools.partial(ordered, shards=shards_of(cut))
            keys, values, asked = jax.tree.map(in_order, (keys, values, asked))
        qkv, both = QKV(queries, keys, values), AskingTokens(asking, asked, indices[0], window)
        if balanced and splash and queries.shape[1] // 2 >= SHORTEST_ROW:
            return attend_to_rows(config, splash, qkv, both, slides)
        dense, keys_at_once = functools.partial(_attend_all, config), 0
        if config.batch_invariant:  # As from the cache: in float32, by as many keys at once.
            qkv, keys_at_once = QKV(*(x.astype(jnp.float32) for x in qkv)), KEYS
        call = BlockCall(config.attention_scale, 2 if balanced else 1, keys_at_once)
        return attend_by_blocks(dense, call, qkv, both).astype(queries.dtype)


def _gathered(x: Float[Array, "B T K H"], cut: tuple[str, ...]) -> Float[Array, "B S K H"]:
    # Along another axis a TPU's compiler may sum gradients whole before it scatters them.
    parts = jax.lax.all_gather(x, cut, axis=0)
    return parts.swapaxes(0, 1).reshape(x.shape[0], -1, *x.shape[2:])


def _attend_all(
    config: ModelConfig, qkv: QKV, visible: Bool[Array, "B T S"]
) -> Float[Array, "B T K N H"]:
    """Computes attention over all keys at once, under a mask; the softmax is in float32."""
    queries, keys, values = qkv
    if _dot_product(config):
        B, T, K, N, H = queries.shape
        mask = jnp.broadcast_to(visible[:, None], (B, 1, T, keys.shape[1]))
        flat = queries.reshape(B, T, K * N, H)
        attended = jax.nn.dot_product_attention(
            flat, keys, values, mask=mask, scale=config.attention_scale
        )
        return attended.reshape(B, T, K, N, H)
    # One matrix product for each kv head: the queries that share it are rows of one matrix.
    B, T, K, N, H = queries.shape
    rows = (queries * config.attention_scale).transpose(0, 2, 3, 1, 4).reshape(B, K, N * T, H)
    scores = jnp.matmul(rows, keys.transpose(0, 2, 3, 1), preferred_element_type=jnp.float32)
    scores = scores.reshape(B, K, N, T, -1) + jnp.where(visible, 0.0, MASKED)[:, None, None]
    weights = jax.nn.softmax(scores, axis=-1).reshape(B, K, N * T, -1)
    mixed = jnp.matmul(weights.astype(values.dtype), values.transpose(0, 2, 1, 3))
    return mixed.reshape(B, K, N, T, H).transpose(0, 3, 1, 2, 4)


def attend_cached(
    config: ModelConfig,
    queries: Float[Array, "B T K N H"],
    cache: AnyCache,
    layer: AttentionLayer,
    context: Context,
    span: int,
) -> Float[Array, "B T K N H"]:
    """Attends from the tokens of a call to the cache slots of their own and earlier positions.

    If the cache is read by pages, only the pages that some row's window needs are read, however
    long the span is. Otherwise the whole span is read at once.
    """
    positions = context.positions
    own_heads = shares() > 1 and bool(in_use().cuts(_QUERIES, queries.shape)[3])
    attend_to = _CacheAttention(config, span, own_heads).attend
    if isinstance(cache, KVCache) and shares() == 1:
        return attend_to(queries, cache, positions, layer.number, layer.window)
    kind = type(cache)
    axes = page_axes(cache) if isinstance(cache, PagedCache) else cache_axes()
    tables = (_TOKENS,) if isinstance(cache, PagedCache) else ()

    def attend_here(
        queries: Array, positions: Array, layer: Array, window: Array, *cache: Array
    ) -> Array:
        return attend_to(queries, kind(*cache), positions, layer, window)

    run = on_shards(attend_here, _QUERIES, _TOKENS, (), (), *axes, *tables)
    return run(queries, positions, layer.number, layer.window, *cache)


_Visible = Callable[[Int[Array, " S"]], Bool[Array, "B T S"]]
"""Function from positions to the mask of those that each token attends to."""


class _CacheAttention(NamedTuple):
    """Attention to a cache, or to a device's share of it; then the results are combined.

    Attributes:
      config: model config.
      span: number of cache slots to read.
      own_heads: whether the devices that share a kv head have other query heads each.
    """

    config: ModelConfig
    span: int
    own_heads: bool

    def attend(
        self,
        queries: Float[Array, "B T K N H"],
        cache: AnyCache,
        positions: Int[Array, "B T"],
        layer: Int[Array, ""],
        window: Int[Array, ""],
    ) -> Float[Array, "B T K N H"]:
        """Attends from a few tokens a row, in the way that suits the cache."""
        # Tokens that are not fed also read slots, those of their row's last token or the first
        # slot, since a softmax over nothing would be NaN.
        newest = jnp.maximum(positions.max(axis=1, keepdims=True), 0)
        positions = jnp.where(positions < 0, newest, positions)

        def visible(slots: Int[Array, " S"]) -> Bool[Array, "B T S"]:
            behind = positions[:, :, None] - slots
            return (behind >= 0) & (behind < window)

        config, span = self.config, self.span
        if isinstance(cache, PagedCache) and cache.values is None:
            assert cache.table is not None
            first = positions[:, 0]
            return attend_by_kernel(config, queries, cache.keys, cache.table, first, layer)
        if in_lines():
            return self._by_heads(queries, lambda own: self._to_lines(own, cache, layer, visible))
        if shares() == 1 and not reads_by_pages(config):
            if isinstance(cache, PagedCache):
                keys, values = read_row_span(cache, layer, span)
            else:
                keys, values = read_span(cache, layer, span)
            return _attend_all(config, QKV(queries, keys, values), visible(jnp.arange(span)))
        page_tokens = self._slots_at_once(cache) * shares()
        first = jnp.maximum(positions.min() - window + 1, 0) // page_tokens
        last = jnp.minimum(positions.max(), span - 1) // page_tokens
        return self._by_heads(
            queries, lambda own: self._to_pages(own, cache, layer, visible, (first, last))
        )

    def _by_heads(
        self,
        queries: Float[Array, "B T K N H"],
        attend: Callable[[Float[Array, "B K R H"]], Float[Array, "B K R H"]],
    ) -> Float[Array, "B T K N H"]:
        """Attends from all queries that share a key head as rows of one matrix."""
        B, T, K, _, H = queries.shape
        # The query heads come first, since devices may share them.
        rows = queries.transpose(0, 2, 3, 1, 4).reshape(B, K, -1, H)
        if self.own_heads:
            rows = jax.lax.all_gather(rows, GROUP, axis=2, tiled=True)
        mixed = attend(rows).astype(queries.dtype)
        return mixed.reshape(B, K, -1, T, H).transpose(0, 3, 1, 2, 4)

    def _to_lines(
        self, query: Float[Array, "B K R H"], cache: AnyCache, layer: Int[Array, ""], sees: _Visible
    ) -> Float[Array, "B K R H"]:
        config = self.config
        if isinstance(cache, PagedCache):
            keys, values = read_row_lines(cache, layer, self.span)
        else:
            keys, values = read_lines(config, cache, layer, self.span)
        parts = keys.shape[3] // config.head_dim
        seen = _of_queries(sees(positions_of(jnp.arange(keys.shape[2] * parts), parts)), query)
        given, scale = (query, keys, values, seen), config.attention_scale
        if shares() == 1:
            return attend_to_lines(*given, scale=scale)
        return combined(attend_to_some_lines(*given, scale=scale), self.own_heads)

    def _to_pages(
        self,
        query: Float[Array, "B K R H"],
        cache: AnyCache,
        layer: Int[Array, ""],
        sees: _Visible,
        pages: tuple[Int[Array, ""], Int[Array, ""]],
    ) -> Float[Array, "B K R H"]:
        """Attends page by page, in float32.

        Args:
          pages: numbers of the first and the last page that some row's window needs.
        """
        slots, one_page = self._slots_at_once(cache), _page_slots(cache)
        times = max(1, slots // one_page)
        query = query.astype(jnp.float32) * self.config.attention_scale

        def add(number: Int[Array, ""], seen: PartialAttention) -> PartialAttention:
            some = [read(number * times + i) for i in range(times)]
            keys = _joined([page.keys for page in some], 3, slots)
            values = _joined([page.values for page in some], 2, slots)
            visible = sees(positions_of(number * slots + jnp.arange(slots)))
            scores = jnp.einsum("BKRH,BKHC->BKRC", query, keys)
            scores = jnp.where(_of_queries(visible, query)[:, None], scores, MASKED)
            return with_keys(seen, scores, values, self.config.batch_invariant)

        def read(number: Int[Array, ""]) -> CacheSlots:
            if isinstance(cache, PagedCache):
                return read_row_page(cache, layer, number)
            return read_page(cache, layer, number)

        first, last = pages
        seen = jax.lax.fori_loop(first, last + 1, add, nothing_seen(query))
        return combined(seen, self.own_heads)

    def _slots_at_once(self, cache: AnyCache) -> int:
        """Returns the number of slots of a device that are read at once."""
        own = _page_slots(cache)
        return max(own, KEYS) if self.config.batch_invariant else own


def _of_queries(
    visible: Bool[Array, "B T S"], queries: Float[Array, "B K R H"]
) -> Bool[Array, "B R S"]:
    """Returns the mask of each query: every head has one for each token, in the same order."""
    return jnp.tile(visible, (1, queries.shape[2] // visible.shape[1], 1))


def _page_slots(cache: AnyCache) -> int:
    """Returns the number of slots of a page that a device holds."""
    assert cache.values is not None
    return cache.values.shape[-2]


def _joined(pages: Sequence[Array], axis: int, slots: int) -> Array:
    """Joins pages along the axis of their slots, in float32, with 0 in slots that are missing."""
    x = pages[0] if len(pages) == 1 else jnp.concatenate(pages, axis)
    more = [(0, slots - x.shape[axis] if axis == each else 0) for each in range(x.ndim)]
    return jnp.pad(x.astype(jnp.float32), more)


def _dot_product(config: ModelConfig) -> bool:
    if config.attention in ("auto", "blocks"):
        # JAX's function asks for products in bfloat16, which GPUs without flash units do not have.
        return platform() == "tpu" or (platform() == "gpu" and has_flash_units())
    return config.attention != "einsum"
