"""Rows whose positions are cut over devices: what each device has, how much it does, and that it is
what one device does.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models import blocks
from rl_sync.models.balance import balance, balanced_order, can_balance, ordered, put_in_order
from rl_sync.models.blocks import BlockSizes, reached
from rl_sync.models.kernels import flash
from rl_sync.models.platform import compiling_for
from rl_sync.models.sharding import using
from rl_sync.models.transformer import hidden_states
from tests.models import meshes, tiny

ROWS = 4


def test_a_device_has_a_chunk_of_each_half_as_far_from_the_middle():
    order = balanced_order(12, 3).reshape(3, 4)
    np.testing.assert_array_equal(order, [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]])


@pytest.mark.parametrize("mesh", [{"context": 4}, {"context": 2, "fsdp": 2}, {"context": 3}])
def test_chunks_travel_to_their_devices_and_back(mesh):
    tokens = jnp.arange(2 * 48 * 3).reshape(2, 48, 3)
    shards = mesh["context"]
    with using(meshes.layout(**mesh)):
        there = jax.jit(balance)(tokens)
        back = jax.jit(put_in_order)(there)
        whole = jax.jit(ordered, static_argnums=1)(np.asarray(there), shards)
    np.testing.assert_array_equal(there, tokens[:, balanced_order(48, shards)])
    np.testing.assert_array_equal(back, tokens)
    np.testing.assert_array_equal(whole, tokens)


@pytest.mark.parametrize("shards", [2, 4, 8])
def test_devices_attend_to_equally_many_blocks_and_skip_what_is_hidden(shards):
    tokens, block = 8192 * shards, 512
    balanced, in_order = (
        np.array([_blocks_of(own, block, tokens) for own in np.split(order, shards)])
        for order in (balanced_order(tokens, shards), np.arange(tokens))
    )
    assert len(set(balanced)) == 1
    assert balanced.sum() == in_order.sum()
    blocks_of_all = (tokens // block) ** 2
    assert balanced.sum() == (blocks_of_all + tokens // block) / 2
    assert in_order.max() > (2 - 1.1 / shards) * balanced.max()


def _blocks_of(own, block, tokens):
    return sum(
        int(stop - first)
        for queries in own.reshape(-1, block)
        for first, stop in [reached(queries, jnp.int32(tokens), block)]
    )


def test_blocks_before_a_window_are_skipped():
    first, stop = reached(jnp.arange(1000, 1100), jnp.int32(201), 100)
    assert (int(first), int(stop)) == (8, 11)
    assert int(reached(jnp.arange(1000, 1100), None, 100)[0]) == 0


def test_scores_of_a_block_are_bounded(monkeypatch):
    monkeypatch.setattr(blocks, "_SCORES_BYTES", 1 << 20)
    sizes = BlockSizes.of(4, 1000, 9000)
    assert 4 * 4 * sizes.queries * sizes.keys <= 1 << 20
    assert sizes.query_blocks * sizes.queries >= 1000
    assert sizes.key_blocks * sizes.keys >= 9000
    assert sizes.queries * sizes.keys * 1.2 > (1 << 20) / 16


def _rows(kind, tokens):
    if kind == "padded":
        return {}
    third = tokens // 3
    if kind == "packed":
        lengths = [5, third, 3, third, tokens - 8 - 2 * third]
        segments = np.repeat([-1, 4, -1, 7, -1], lengths)
        positions = np.concatenate([np.arange(length) for length in lengths])
        return dict(positions=_all(positions), segments=_all(segments))
    # A prompt that two completions share.
    lengths = [third, third, tokens - 2 * third]
    positions = [*range(2 * third), *range(third, third + lengths[2])]
    return dict(
        positions=_all(positions),
        segments=_all(np.repeat([-1, 1, 2], lengths)),
        prompts=_all(np.zeros(tokens, int)),
    )


def _all(row):
    return np.tile(np.asarray(row, np.int32), (ROWS, 1))


def _states(config, layout, tokens, **rows):
    """Computes hidden states and gradients of a model, at real tokens."""
    ids = np.random.default_rng(1).integers(0, 11, (ROWS, tokens)).astype(np.int32)
    weights = np.random.default_rng(2).standard_normal((ROWS, tokens, config.embed_dim))
    if "segments" in rows and "prompts" not in rows:
        weights = np.where(rows["segments"][..., None] >= 0, weights, 0)

    def loss(params):
        states = hidden_states(config, params, ids, **rows)
        return (states * weights).sum(), states

    with using(layout):
        (_, states), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(tiny.params(config))
    return [np.where(weights == 0, 0, states), *jax.tree.leaves(grads)]


MODEL = dataclasses.replace(tiny.VARIANTS["sliding"], sliding_window=30)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("tokens", "mesh"),
    [
        (96, {"context": 4}),
        (100, {"context": 4}),
        (104, {"context": 2, "tensor": 2}),
        (101, {"context": 2, "tensor": 2}),
    ],
)
@pytest.mark.parametrize("kind", ["padded", "packed", "shared"])
def test_devices_that_share_rows_compute_what_one_does(kind, tokens, mesh, monkeypatch):
    monkeypatch.setattr(blocks, "_SCORES_BYTES", 16_000)
    layout = meshes.layout(**mesh).grouped(MODEL.num_kv_heads)
    with using(layout):
        assert can_balance((ROWS, tokens)) == (tokens % (2 * mesh["context"]) == 0)
    rows = _rows(kind, tokens)
    model = dataclasses.replace(MODEL, attention="einsum")
    expected = _states(model, meshes.layout(), tokens, **rows)
    found = _states(dataclasses.replace(MODEL, remat="full"), layout, tokens, **rows)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5 * np.abs(y).max())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("tokens", "mesh"), [(1040, {"context": 4}), (520, {"context": 2, "tensor": 2})]
)
@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_splash_attends_from_balanced_rows(kind, tokens, mesh, monkeypatch):
    """With blocks of 128, a device has parts of several, which are skipped unlike elsewhere."""
    called = []

    def interpreted(window, *inputs):
        called.append(window)
        return splash(window, *inputs, interpret=True)

    splash = flash.splash_to_rows
    monkeypatch.setattr(flash, "splash_to_rows", interpreted)
    monkeypatch.setattr(flash, "_LARGEST_BLOCK", 128)
    rows = _rows(kind, tokens)
    layout = meshes.layout(**mesh).grouped(MODEL.num_kv_heads)
    model = dataclasses.replace(MODEL, attention="einsum")
    expected = _states(model, meshes.layout(), tokens, **rows)
    with compiling_for("tpu"):
        found = _states(dataclasses.replace(MODEL, remat="full"), layout, tokens, **rows)
    assert set(called) == {None, MODEL.sliding_window}
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5 * np.abs(y).max())
