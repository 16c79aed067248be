"""Pages as a TPU's kernel reads them; on the CPU its documented result stands for the kernel."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import ragged_paged_attention as kernels

from rl_sync.models.paging.paged_cache import (
    PageFills,
    copy_pages,
    empty_pages,
    fill_pages,
)
from rl_sync.models.paging.ragged import kernel_reads
from rl_sync.models.platform import compiling_for
from rl_sync.models.sharding import using
from rl_sync.models.transformer import logits, prefill
from tests.models import tiny
from tests.models.meshes import layout

CONFIG = dataclasses.replace(
    tiny.CONFIG, num_layers=2, head_dim=128, query_scale=0.1, max_length=96
)


def test_the_kernel_reads_pages_of_wide_heads_without_windows():
    with compiling_for("tpu"):
        assert kernel_reads(CONFIG)
        assert not kernel_reads(dataclasses.replace(CONFIG, head_dim=64))
        sliding = dataclasses.replace(CONFIG, sliding_window=8, sliding_layers=(True, False))
        assert not kernel_reads(sliding)
        # Of three heads in bfloat16 a device has six rows, and a tile has four or eight.
        assert not kernel_reads(
            dataclasses.replace(CONFIG, num_heads=3, num_kv_heads=3, dtype="bfloat16")
        )
    assert not kernel_reads(CONFIG)


def attended(q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, *, sm_scale, **_):
    """Returns the kernel's result for one query a sequence, as its documentation defines it."""
    assert q.shape[0] == page_indices.shape[0] == cu_q_lens.shape[0] - 1
    rows = kv_pages[page_indices]
    B, Z, C, both, H = rows.shape
    rows = rows.reshape(B, Z * C, both, H)
    keys, values = (jnp.repeat(rows[:, :, i::2], 2 * q.shape[1] // both, axis=2) for i in (0, 1))
    scores = jnp.einsum("bnh,bsnh->bns", q, keys) * sm_scale
    scores = jnp.where(jnp.arange(Z * C) < kv_lens[:, None, None], scores, -jnp.inf)
    return jnp.einsum("bns,bsnh->bnh", jax.nn.softmax(scores), values)


@pytest.mark.nightly
@pytest.mark.parametrize("mesh", [{}, {"tensor": 2}])
def test_decoding_by_the_kernel_gives_the_logits_of_the_full_forward_pass(mesh, monkeypatch):
    monkeypatch.setattr(kernels, "ragged_paged_attention", attended)
    params = tiny.params(CONFIG, spread=0.2)
    tokens = np.random.default_rng(5).integers(2, 11, (3, 48)).astype(np.int32)
    full = tiny.forward(CONFIG, params, tokens)
    lengths = np.array([40, 31, 32])
    table = np.array([[3, 1, 0], [5, 2, 0], [4, 7, 0]], np.int32)
    numbers = np.tile([0, 1], 3).astype(np.int32)
    fills = PageFills(
        np.array([6], np.int32), np.repeat(np.arange(3), 2).astype(np.int32), numbers,
        table[:, :2].reshape(-1),
    )  # fmt: skip
    step = jax.jit(tiny.decode_step, static_argnums=(0, 5))
    with compiling_for("tpu"), using(layout(**mesh)):
        prefix = prefill(CONFIG, params, tokens[:, :40]).cache
        cache = jax.jit(fill_pages)(empty_pages(CONFIG, 8), prefix, fills)
        copied = copy_pages(cache, table[1, :2], 40)
        for one, whole in zip(copied, prefix, strict=True):
            np.testing.assert_array_equal(one[:, :, 0], whole[:, :, 1])
        cache = cache._replace(table=table)
        for after in range(3):
            positions = (lengths + after).astype(np.int32)
            fed = step(CONFIG, params, tokens[np.arange(3), positions], positions, cache, 96)
            cache = fed.cache
            scores = logits(CONFIG, params, fed.hidden)
            expected = full[np.arange(3), positions]
            np.testing.assert_allclose(scores, expected, atol=1e-5 * float(abs(full).max()))
