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
from rl_sync.models.transformer import decode_step, logits, prefill
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
    """Returns the kernel's result, as its documentation defines it: the queries of a sequence are
    its last tokens, equally many of each here.
    """
    B, fed = page_indices.shape[0], q.shape[0] // page_indices.shape[0]
    assert cu_q_lens.shape[0] == B + 1
    q = q.reshape(B, fed, *q.shape[1:])
    rows = kv_pages[page_indices]
    B, Z, C, both, H = rows.shape
    rows = rows.reshape(B, Z * C, both, H)
    keys, values = (jnp.repeat(rows[:, :, i::2], 2 * q.shape[2] // both, axis=2) for i in (0, 1))
    scores = jnp.einsum("btnh,bsnh->btns", q, keys) * sm_scale
    ends = kv_lens[:, None] - fed + 1 + jnp.arange(fed)
    scores = jnp.where(jnp.arange(Z * C) < ends[..., None, None], scores, -jnp.inf)
    mixed = jnp.einsum("btns,bsnh->btnh", jax.nn.softmax(scores), values)
    return mixed.reshape(-1, *mixed.shape[2:])


@pytest.mark.nightly
@pytest.mark.parametrize(("mesh", "fed"), [({}, 1), ({"tensor": 2}, 1), ({}, 3)])
def test_decoding_by_the_kernel_gives_the_logits_of_the_full_forward_pass(mesh, fed, monkeypatch):
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
    step = jax.jit(decode_step, static_argnums=(0, 5))
    with compiling_for("tpu"), using(layout(**mesh)):
        prefix = prefill(CONFIG, params, tokens[:, :40]).cache
        cache = jax.jit(fill_pages)(empty_pages(CONFIG, 8), prefix, fills)
        copied = copy_pages(cache, table[1, :2], 40)
        for one, whole in zip(copied, prefix, strict=True):
            np.testing.assert_array_equal(one[:, :, 0], whole[:, :, 1])
        cache = cache._replace(table=table)
        for after in range(0, 3, fed):
            positions = (lengths[:, None] + after + np.arange(fed)).astype(np.int32)
            positions[1, 2:] = -1  # This row feeds no third token.
            own = tokens[np.arange(3)[:, None], positions]
            found = step(CONFIG, params, own, positions, cache, 96)
            cache = found.cache
            scores = np.asarray(logits(CONFIG, params, found.hidden))[positions >= 0]
            expected = np.asarray(full[np.arange(3)[:, None], positions])[positions >= 0]
            np.testing.assert_allclose(scores, expected, atol=1e-5 * float(abs(full).max()))
