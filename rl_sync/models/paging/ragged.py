"""Attends to pages by a TPU kernel, which reads only the pages that rows have filled.

The kernel is ragged paged attention (arXiv:2604.15464), as in JAX. It wants the heads of a token
side by side, a key and its value in turn, and reads each row's pages up to the row's length.

Letters in shapes: B rows, K kv heads, N query heads that share a kv head, H head dim, L layers, P
pages of a pool, Z pages of a row, C slots of a page.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rl_sync.models.config import ModelConfig
from rl_sync.models.platform import TPU_LANES, platform
from rl_sync.models.sharding import in_use
from rl_sync.models.slot_shares import shares

_TILES = (1, 2, 4, 8)
_BLOCK_PAGES, _BLOCK_ROWS = 16, 8
"""Pages of a row that the kernel reads at once, and rows that share a block of queries."""


def kernel_reads(config: ModelConfig) -> bool:
    """Says whether the kernel reads pages of a model's cache, on this platform and mesh.

    It has one window for all layers, and needs heads as wide as a TPU's lanes, or multiples, and
    kv heads of a device that fill its tiles. It cannot combine its results with those of devices
    that have other positions.
    """
    if platform() != "tpu" or config.attention not in ("auto", "blocks"):
        return False
    if config.head_dim % TPU_LANES or any(config.sliding_layers) or shares() > 1:
        return False
    heads = config.num_kv_heads
    own = in_use().sharding(("kv",), (heads,)).shard_shape((heads,))[0]
    tiles, rest = divmod(2 * own * jnp.dtype(config.dtype).itemsize, 4)
    return not rest and (tiles in _TILES or tiles % _TILES[-1] == 0)


def attend_by_kernel(
    config: ModelConfig,
    queries: Float[Array, "B T K N H"],
    pool: Float[Array, "L P C 2*K H"],
    table: Int[Array, "B Z"],
    positions: Int[Array, " B"],
    layer: Int[Array, ""],
) -> Float[Array, "B T K N H"]:
    """Attends from consecutive tokens to all tokens up to their positions, on one device's pool.

    Args:
      positions: position of the first token of each row.
    """
    # Imported late, since it takes a while and other platforms do not need it.
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

    B, T, K, N, H = queries.shape
    L, P, *page = pool.shape
    # Tokens that are not fed may reach behind a row; the pages that they read do not matter.
    table = jnp.pad(table, ((0, 0), (0, -(-(T - 1) // page[0]))))
    attended = ragged_paged_attention(
        queries.reshape(B * T, K * N, H),
        pool.reshape(L * P, *page),
        positions + T,
        table + layer * P,
        T * jnp.arange(B + 1, dtype=jnp.int32),
        jnp.array([B], jnp.int32),
        sm_scale=config.attention_scale,
        num_kv_pages_per_block=min(table.shape[1], _BLOCK_PAGES),
        num_queries_per_block=min(B * T, _BLOCK_ROWS),
    )
    return attended.reshape(queries.shape)
