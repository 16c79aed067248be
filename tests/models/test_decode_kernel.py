"""The kernel of decode steps on GPUs, which runs as plain operations here, beside attention."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models.cache import KVCache
from rl_sync.models.kernels import decode
from rl_sync.models.kernels.decode import HeldTokens, NewTokens, attend_new, decodes_by_kernel
from rl_sync.models.paging.paged_cache import PagedCache
from rl_sync.models.platform import compiling_for
from rl_sync.models.sharding import using
from rl_sync.models.transformer import logits
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from tests.models import tiny
from tests.models.meshes import layout

LAYERS, LAYER, SCALE = 3, 1, 0.2
CONFIG = dataclasses.replace(tiny.CONFIG, head_dim=32, query_scale=0.3, dtype="bfloat16")
# The first row is long, the second is not fed, and the third and the fourth are short.
POSITIONS = np.array([600, -1, 65, 0], np.int32)


@pytest.fixture(autouse=True)
def by_plain_operations(monkeypatch):
    """Lets the kernel of models run on this platform."""
    monkeypatch.setattr(decode, "attend_new", functools.partial(attend_new, interpret=True))


def _drawn(queries, width, dtype, window, slots, pages=0):
    """Returns new tokens of four rows with two kv heads, and what is held of three layers."""
    rng = np.random.default_rng(queries + width)

    def draw(*shape):
        return rng.standard_normal(shape).astype(jnp.dtype(dtype))

    angles = rng.uniform(0, 6, (4, width // 2)).astype(np.float32)
    new = NewTokens(
        draw(4, 2, queries + 2, width), np.cos(angles), np.sin(angles), POSITIONS,
        np.int32(LAYER), np.int32(window),
    )  # fmt: skip
    if not pages:
        return new, HeldTokens(draw(LAYERS, 4, 2, slots, width), draw(LAYERS, 4, 2, slots, width))
    count = -(-slots // pages)
    table = rng.permutation(4 * count + 3)[: 4 * count].reshape(4, count).astype(np.int32)
    shape = LAYERS, 4 * count + 3, 2, pages, width
    return new, HeldTokens(draw(*shape), draw(*shape), table)


def _attended(new, held):
    return jax.jit(functools.partial(attend_new, scale=SCALE, interpret=True))(new, held)


def _rows(held):
    """Returns the keys and the values of the layer by row, in float64, [B, K, S, H]."""
    both = (np.asarray(x, np.float64)[LAYER] for x in held[:2])
    if held.table is None:
        return tuple(both)
    pages = (x[np.asarray(held.table)] for x in both)  # [B, Z, K, C, H]
    return tuple(x.transpose(0, 2, 1, 3, 4).reshape(4, 2, -1, x.shape[-1]) for x in pages)


def _expected(new, held):
    """Computes attention as its definition says, in float64; also the new keys and values."""
    heads = np.asarray(new.heads, np.float64)
    cos, sin = (np.asarray(x, np.float64)[:, None, None] for x in (new.cos, new.sin))
    first, second = np.split(heads[:, :, :-1], 2, axis=-1)
    turned = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    keys, values = (x.copy() for x in _rows(held))
    out = np.zeros_like(turned[:, :, :-1])
    for row, position in enumerate(POSITIONS):
        if position < 0:
            continue
        keys[row, :, position], values[row, :, position] = turned[row, :, -1], heads[row, :, -1]
        seen = slice(max(0, position - int(new.window) + 1), position + 1)
        scores = turned[row, :, :-1] @ keys[row, :, seen].swapaxes(1, 2) * SCALE
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out[row] = weights / weights.sum(-1, keepdims=True) @ values[row, :, seen]
    return out, keys, values


CASES = {
    "a group of 7": (7, 64, "bfloat16", 10_000, 640, 0, 1),
    "heads alone, in parts": (1, 32, "bfloat16", 10_000, 1024, 0, 64),
    "a window": (2, 128, "float16", 100, 700, 0, 1),
    "a window in parts": (4, 32, "float16", 300, 1100, 0, 16),
    "pages": (7, 64, "bfloat16", 10_000, 640, 32, 1),
    "pages in parts with a window": (3, 32, "bfloat16", 500, 1024, 32, 32),
    "many queries": (20, 32, "float16", 10_000, 640, 0, 1),
}


@pytest.mark.samples(gate=("a group of 7", "pages in parts with a window"))
@pytest.mark.parametrize("name", CASES)
def test_it_attends_to_the_row_and_its_new_token(name, monkeypatch):
    *sizes, programs = CASES[name]
    monkeypatch.setattr(decode, "_PROGRAMS", programs)
    new, held = _drawn(*sizes)
    mixed, after = _attended(new, held)
    assert mixed.dtype == new.heads.dtype
    out, *expected = _expected(new, held)
    fed = POSITIONS >= 0
    tolerance = 2e-2 if sizes[2] == "bfloat16" else 4e-3
    np.testing.assert_allclose(np.asarray(mixed, np.float64)[fed], out[fed], atol=tolerance)
    for found, wanted in zip(_rows(after), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.gate
def test_it_writes_one_slot_of_each_row_that_is_fed_and_of_one_layer():
    new, held = _drawn(3, 32, "bfloat16", 10_000, 640)
    after = _attended(new, held)[1]
    for before, now in zip(held[:2], after[:2], strict=True):
        changed = (before != np.asarray(now)).any(axis=(2, 4))  # [L, B, C]
        assert np.argwhere(changed).tolist() == [[LAYER, 0, 600], [LAYER, 2, 65], [LAYER, 3, 0]]


@pytest.mark.samples(gate=("biased and untied-False-mesh0", "stretched-True-mesh1"))
@pytest.mark.parametrize("mesh", [{}, {"data": 2, "tensor": 2}])
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("name", ["biased and untied", "stretched", "sliding"])
def test_a_decode_step_by_it_has_the_logits_of_other_operations(name, mesh, paged):
    kind = tiny.VARIANTS[name]
    config = dataclasses.replace(kind, head_dim=32, query_scale=0.3, dtype="bfloat16")
    params = tiny.params(config, spread=0.2)
    rng = np.random.default_rng(1)
    shape = config.num_layers, 1, 4, config.num_kv_heads, 64, config.head_dim
    drawn = rng.standard_normal((2, *shape)).astype(jnp.dtype(config.dtype))
    cache = KVCache(*drawn)
    if paged:  # Pages of 32 slots, in order.
        pages = [x[:, 0].reshape(*shape[:1], 4, shape[3], 2, 32, -1).swapaxes(2, 3) for x in cache]
        pages = [x.reshape(shape[0], 8, shape[3], 32, -1) for x in pages]
        table = np.arange(8, dtype=np.int32).reshape(4, 2)
        if mesh:
            table = table % 4  # Each half of the rows has a pool of its own.
        cache = PagedCache(*pages, table)
    positions = np.array([33, 7, -1, 20], np.int32)
    tokens = np.array([3, 5, 2, 9])
    step = jax.jit(tiny.decode_step, static_argnums=(0, 5))
    scored = jax.jit(logits, static_argnums=0)
    results = []
    for attention in ("auto", "einsum"):
        own = dataclasses.replace(config, attention=attention)
        with compiling_for("gpu"), using(layout(**mesh)):
            assert decodes_by_kernel(own) == (attention == "auto")
            fed = step(own, params, tokens, positions, cache, 64)
            scores = scored(own, params, fed.hidden)
            scores = np.asarray(scores, np.float32)[positions >= 0]
        results.append((scores, fed.cache))
    (found, written), (expected, alike) = results
    np.testing.assert_allclose(found, expected, atol=0.05 * float(np.abs(expected).max()))
    for one, other in zip(written[:2], alike[:2], strict=True):
        one, other = (np.asarray(x, np.float32) for x in (one, other))
        np.testing.assert_allclose(one, other, rtol=0.1, atol=0.1)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("platform", "changes"),
    [
        ("cpu", {}),
        ("tpu", {}),
        ("gpu", {"dtype": "float32"}),
        ("gpu", {"head_dim": 48}),
        ("gpu", {"attention": "einsum"}),
        ("gpu", {"batch_invariant": True}),
    ],
)
def test_other_platforms_and_models_keep_other_operations(platform, changes):
    with compiling_for("gpu"):
        assert decodes_by_kernel(CONFIG)
    with compiling_for(platform):
        assert not decodes_by_kernel(dataclasses.replace(CONFIG, **changes))


@pytest.mark.gate
def test_devices_that_share_a_head_keep_other_operations():
    with compiling_for("gpu"), using(layout(tensor=4).grouped(CONFIG.num_kv_heads)):
        assert not decodes_by_kernel(CONFIG)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("changes", "options", "one"),
    [
        ({}, {}, True),
        ({"dtype": "float32"}, {}, False),
        ({}, {"speculation": "auto"}, False),
    ],
)
def test_one_program_serves_rows_of_all_lengths_where_it_reads_what_is_filled(
    changes, options, one
):
    config = dataclasses.replace(CONFIG, max_length=2048, **changes)
    with compiling_for("gpu"):
        engine = Engine(config, layout(), EngineOptions(slots=4, **options))
        listed = engine.possible(tiny.params(config)).sizes.spans
    assert (len(listed) == 1) == one
