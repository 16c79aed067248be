"""Runs flash attention: kernels that attend within a call, without an array of [T, T].

See FlashAttention, arXiv:2205.14135. On a TPU this is the splash kernel. On a GPU it is cuDNN's
kernel for rows of one sequence, and a Triton kernel for rows of several. Each kernel supports only
some calls.

Letters in shapes: B rows, T positions, K kv heads, N query heads that share a kv head, H head dim.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl_sync.models.blocks import QKV, AskingTokens
from rl_sync.models.config import ModelConfig
from rl_sync.models.platform import Platform, has_flash_units, platform

Kernel = Literal["splash", "cudnn", "triton"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)

SHORTEST_ROW = 128
"""Minimum tokens of a row for kernels: shorter rows do not fill blocks, and have few scores."""

_PLATFORMS: dict[Kernel, Platform] = {"splash": "tpu", "cudnn": "gpu", "triton": "gpu"}
_LARGEST_BLOCK = 512  # For splash: larger blocks save little, and smaller ones leave the TPU idle.
_TRITON_BLOCK = 64  # Shared memory holds two such blocks of the widest heads.
_WIDEST_GPU_HEAD = 128
_TRITON = "jax.experimental.pallas.ops.gpu.attention"  # Deprecated from JAX 0.12 on.


class AttentionCall(NamedTuple):
    """Properties of a call that decide which kernels support it.

    Attributes:
      row_tokens: length of rows, T.
      packed: whether a row may hold several sequences.
      shared: whether sequences share prompts, so that tokens in a row and in a sequence have
        different orders.
      slides: whether some layers have a window that is shorter than the rows.
      both_ways: whether tokens of images attend to later ones of the same tile.
    """

    row_tokens: int
    packed: bool
    shared: bool
    slides: bool
    both_ways: bool = False

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        row_tokens: int,
        packed: bool,
        shared: bool,
        both_ways: bool = False,
    ) -> AttentionCall:
        """Returns the properties of a model's call."""
        slides = any(config.sliding_layers) and config.sliding_window < row_tokens
        return cls(row_tokens, packed, shared, slides, both_ways)


def kernel_for(config: ModelConfig, call: AttentionCall) -> Kernel | None:
    """Chooses the kernel for a call; None if `config.attention` excludes kernels, or none fits.

    Raises:
      ValueError: `config.attention` names a kernel that does not support the call or this platform.
    """
    if call.row_tokens < SHORTEST_ROW:
        return None
    if config.attention == "auto":
        names = (name for name, of in _PLATFORMS.items() if of == platform())
        return next((name for name in names if not _obstacle(name, config, call)), None)
    if config.attention not in KERNELS:
        return None
    require_fit(config, call)
    name = cast(Kernel, config.attention)
    here, there = platform(), _PLATFORMS[name]
    _require(name, f"is for {there.upper()}s, not for a {here.upper()}" * (here != there))
    return name


def require_fit(config: ModelConfig, call: AttentionCall) -> None:
    """Rejects a kernel in `config.attention` that does not support a call on any device.

    Raises:
      ValueError: the message gives the reason and the remedy.
    """
    if config.attention in KERNELS:
        name = cast(Kernel, config.attention)
        _require(name, _obstacle(name, config, call))


def _require(name: Kernel, obstacle: str) -> None:
    if obstacle:
        raise ValueError(
            f"model.attention={name} {obstacle}: use model.attention=auto, which chooses by device"
            " and by rows."
        )


def _obstacle(name: Kernel, config: ModelConfig, call: AttentionCall) -> str:
    """Returns the reason why a kernel does not support a call; empty if it does."""
    if call.shared:
        return "cannot attend to prompts that sequences share (trainer.batching=shared)"
    if call.both_ways:
        return "cannot attend both ways within images"
    if name == "splash":
        return ""
    if not has_flash_units():
        return "needs an NVIDIA GPU of compute capability 8.0 or more"
    if config.dtype == "float32":
        return "computes in bfloat16 or float16, not in dtype=float32"
    if config.head_dim % 8 or config.head_dim > _WIDEST_GPU_HEAD:
        return (
            f"needs a head_dim that is a multiple of 8 and at most {_WIDEST_GPU_HEAD}, not"
            f" {config.head_dim}"
        )
    if name == "cudnn" and call.packed:
        return "attends within rows of one sequence each, not of several"
    if name == "triton" and call.slides:
        return "does not support sliding windows"
    if name == "triton" and importlib.util.find_spec(_TRITON) is None:
        return f"is not in this version of JAX ({_TRITON})"
    return ""


def attend_by(
    kernel: Kernel, config: ModelConfig, call: AttentionCall
) -> Callable[[Array, Array, Array, Array | None, Array], Array]:
    """Makes a function that attends within a call with a kernel, on one device.

    Its arguments are queries, keys, values, segments (see `Context`), and whether this layer has a
    sliding window.
    """
    by_kernel = functools.partial(_ATTENDING[kernel], config)

    def attend(
        queries: Float[Array, "B T K N H"],
        keys: Float[Array, "B T K H"],
        values: Float[Array, "B T K H"],
        segments: Int[Array, "B T"] | None,
        slides: Bool[Array, ""],
    ) -> Float[Array, "B T K N H"]:
        return _by_layer(config, call, slides, by_kernel, QKV(queries, keys, values), segments)

    return attend


def attend_to_rows(
    config: ModelConfig,
    call: AttentionCall,
    qkv: QKV,
    tokens: AskingTokens,
    slides: Bool[Array, ""],
) -> Float[Array, "B T K N H"]:
    """Attends from a device's part of balanced rows to whole rows with the splash kernel.

    Args:
      qkv: queries, and keys and values in the order of rows.
      tokens: tokens of both; see `rl_sync.models.balance`.
      slides: whether this layer has a sliding window.
    """
    scaled = qkv._replace(queries=qkv.queries * config.attention_scale)
    segments = None
    if tokens.asking.segments is not None and tokens.asked.segments is not None:
        segments = tokens.asking.segments, tokens.asked.segments
    return _by_layer(config, call, slides, splash_to_rows, scaled, tokens.indices, segments)


def _by_layer(
    config: ModelConfig,
    call: AttentionCall,
    slides: Bool[Array, ""],
    attend: Callable[..., Array],
    *inputs: Any,
) -> Array:
    """Attends with the window of a layer, which is the first argument of `attend`."""
    if not call.slides:
        return attend(None, *inputs)
    local = functools.partial(attend, config.sliding_window)
    if all(config.sliding_layers):
        return local(*inputs)
    # A window is part of the kernel, so a model with both kinds of layers calls two kernels.
    return jax.lax.cond(slides, local, functools.partial(attend, None), *inputs)


def _by_splash(
    config: ModelConfig,
    window: int | None,
    qkv: QKV,
    segments: Array | None,
) -> Array:
    scaled = qkv._replace(queries=qkv.queries * config.attention_scale)
    return splash(scaled, segments, window)


def _by_cudnn(
    config: ModelConfig,
    window: int | None,
    qkv: QKV,
    segments: Array | None,
) -> Array:
    assert segments is None
    queries, keys, values = qkv
    B, T, K, N, H = queries.shape
    return jax.nn.dot_product_attention(
        queries.reshape(B, T, K * N, H),
        keys,
        values,
        scale=config.attention_scale,
        is_causal=True,
        local_window_size=None if window is None else (window - 1, 0),
        implementation="cudnn",
    ).reshape(queries.shape)


def _by_triton(
    config: ModelConfig,
    window: int | None,
    qkv: QKV,
    segments: Array | None,
) -> Array:
    assert window is None
    return triton(qkv, segments, config.attention_scale)


def splash(
    qkv: QKV,
    segments: Int[Array, "B T"] | None,
    window: int | None,
    interpret: bool = False,
) -> Float[Array, "B T K N H"]:
    """Attends to earlier tokens of the same sequence with the splash kernel.

    Args:
      qkv: scaled queries, keys and values.
      interpret: whether the kernel runs as plain operations, on any platform.
    """
    # Importing it takes long, and only a TPU needs it.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    T, N = qkv.queries.shape[1], qkv.queries.shape[3]
    block, width = _blocks(T)
    qkv, segments = _padded(width - T, qkv, segments)
    shape = (width, width)
    mask = masks.CausalMask(shape) if window is None else masks.LocalMask(shape, (window - 1, 0), 0)
    kernel = kernels.make_splash_mqa_single_device(
        masks.MultiHeadMask([mask] * N),
        block_sizes=_splash_sizes(block, block),
        interpret=interpret,
    )
    ids = None if segments is None else kernels.SegmentIds(segments, segments)
    return _by_heads(kernel, qkv, ids)[:, :T]


def _splash_sizes(queries: int, keys: int) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels

    return kernels.BlockSizes(
        block_q=queries,
        block_kv=keys,
        block_q_dkv=queries,
        block_kv_dkv=keys,
        block_q_dq=queries,
        block_kv_dq=keys,
    )


def _by_heads(kernel: Callable[..., Any], qkv: QKV, ids: Any) -> Array:
    """Calls a splash kernel, which is for one key head of one row, for all of them."""
    queries, keys, values = qkv
    of_row = jax.vmap(kernel, in_axes=(0, 0, 0, None))
    mixed = jax.vmap(of_row, in_axes=(0, 0, 0, None if ids is None else 0))(
        queries.transpose(0, 2, 3, 1, 4), keys.swapaxes(1, 2), values.swapaxes(1, 2), ids
    )
    return mixed.transpose(0, 3, 1, 2, 4)


def splash_to_rows(
    window: int | None,
    qkv: QKV,
    indices: Int[Array, " T"],
    segments: tuple[Int[Array, "B T"], Int[Array, "B S"]] | None,
    interpret: bool = False,
) -> Float[Array, "B T K N H"]:
    """Attends from two runs of consecutive tokens to earlier tokens of whole rows; see `splash`.

    The mask depends on the device, which computes from `indices` which blocks its kernel skips.

    Args:
      qkv: scaled queries, and keys and values in the order of rows.
      indices: index in its row of each query.
      segments: of the queries, and of the keys.
      interpret: whether the kernel runs as plain operations, on any platform.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels

    queries, keys, values = qkv
    B, T, K, N, H = queries.shape
    (block, width), (key_block, key_width) = _blocks(T // 2), _blocks(keys.shape[1])

    def cut(x: Array) -> Array:
        runs = x.reshape(x.shape[0], 2, T // 2, *x.shape[2:])
        # The last token of each run again: what a block reaches stays the same.
        more = [(0, width - T // 2 if axis == 2 else 0) for axis in range(runs.ndim)]
        return jnp.pad(runs, more, mode="edge").reshape(x.shape[0], 2 * width, *x.shape[2:])

    def padded(x: Array) -> Array:
        more = key_width - x.shape[1]
        return jnp.pad(x, [(0, more if axis == 1 else 0) for axis in range(x.ndim)])

    ids = segments and kernels.SegmentIds(cut(segments[0]), padded(segments[1]))
    indices = cut(indices[None])[0]
    forward, backward = _mask_infos(indices, window, block, key_width, key_block)
    kernel = kernels.SplashAttentionKernel(
        forward,
        forward,
        backward,
        is_mqa=True,
        block_sizes=_splash_sizes(block, key_block),
        save_residuals=False,
        mask_value=kernels.DEFAULT_MASK_VALUE,
        attn_logits_soft_cap=None,
        residual_checkpoint_name=None,
        mask_function=_sees(window),
        interpret=interpret,
    )
    mixed = _by_heads(kernel, QKV(cut(queries), padded(keys), padded(values)), ids)
    return mixed.reshape(B, 2, width, K, N, H)[:, :, : T // 2].reshape(B, T, K, N, H)


@functools.cache  # The kernel is traced once for each function.
def _sees(window: int | None) -> Callable[[Array, Array], Array]:
    """Returns the mask of keys that queries attend to, as a function of their indices."""

    def sees(queries: Array, keys: Array) -> Array:
        causal = queries >= keys
        return causal if window is None else causal & (queries - keys < window)

    return sees


def _mask_infos(
    indices: Int[Array, " T"], window: int | None, block: int, key_width: int, key_block: int
) -> tuple[Any, Any]:
    """Returns splash's tables of blocks that are not hidden, by blocks of queries and of keys.

    The first has the block of keys to load next, and the second the block of queries.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as infos

    first, last = indices.reshape(-1, block)[:, :1], indices.reshape(-1, block)[:, -1:]
    start = jnp.arange(0, key_width, key_block)
    seen = start <= last
    if window is not None:
        seen &= first - (start + key_block - 1) < window

    def table(axis: int) -> Any:
        number = jax.lax.broadcasted_iota(jnp.int32, seen.shape, axis)
        following = jax.lax.cummin(
            jnp.where(seen, number, seen.shape[axis]), axis=axis, reverse=True
        )
        loaded = jnp.where(following < seen.shape[axis], following, 0)
        info: Any = infos.MaskInfo  # Its fields may be traced arrays.
        return info(
            data_next=loaded[None].astype(jnp.int16),
            mask_next=None,
            block_mask=seen[None].astype(jnp.int8),
            partial_mask_blocks=None,
            q_sequence=indices,
        )

    return table(1), table(0)


def triton(
    qkv: QKV,
    segments: Int[Array, "B T"] | None,
    scale: float,
    interpret: bool = False,
) -> Float[Array, "B T K N H"]:
    """Attends to earlier tokens of the same sequence with JAX's Triton kernel.

    The kernel does not support shared heads: each query head gets a copy of the keys and values.

    Args:
      interpret: whether the kernel runs as plain operations, on any platform.
    """
    # Importing it takes long, and only a GPU needs it.
    from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha

    T, N, block = qkv.queries.shape[1], qkv.queries.shape[3], _TRITON_BLOCK
    (queries, keys, values), segments = _padded(-T % block, qkv, segments)
    mixed = mha(
        queries.reshape(*queries.shape[:2], -1, queries.shape[4]),
        jnp.repeat(keys, N, axis=2),
        jnp.repeat(values, N, axis=2),
        segments,
        sm_scale=scale,
        causal=True,
        block_sizes=BlockSizes(block, block, block, block, block, block),
        interpret=interpret,
    )
    return mixed.reshape(queries.shape)[:, :T]


_ATTENDING: dict[Kernel, Callable[..., Array]] = {
    "splash": _by_splash,
    "cudnn": _by_cudnn,
    "triton": _by_triton,
}


def _blocks(row_tokens: int) -> tuple[int, int]:
    """Returns the size of a block, and the total size of the fewest blocks that hold a row."""
    count = -(-row_tokens // _LARGEST_BLOCK)
    lanes = 128  # A block is a multiple of this.
    block = -(-row_tokens // (count * lanes)) * lanes
    return block, -(-row_tokens // block) * block


def _padded(more: int, qkv: QKV, segments: Array | None) -> tuple[QKV, Array | None]:
    """Appends tokens that the earlier tokens do not attend to."""

    def pad(x: Array) -> Array:
        return jnp.pad(x, [(0, more if axis == 1 else 0) for axis in range(x.ndim)])

    return QKV(*map(pad, qkv)), None if segments is None else pad(segments)
