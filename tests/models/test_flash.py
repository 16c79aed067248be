"""Kernels that attend without an array of [T, T], against attention that has one."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models import blocks
from rl_sync.models.attention import AttentionLayer, Context, attend
from rl_sync.models.kernels import flash
from rl_sync.models.kernels.flash import AttentionCall, kernel_for
from rl_sync.models.layers import Rotation
from rl_sync.models.platform import compiling_for
from rl_sync.models.sharding import using
from rl_sync.models.transformer import hidden_states
from tests.models import meshes, tiny

pytestmark = pytest.mark.gate

CONFIG = dataclasses.replace(tiny.CONFIG, num_layers=1, head_dim=8, query_scale=0.3)
ROWS, TOKENS = 2, 200
# Two sequences with padding before, between and behind; and one between padding.
SEGMENTS = np.stack(
    [
        np.repeat([-1, 4, -1, 7, -1], [20, 90, 7, 60, 23]),
        np.repeat([-1, 9, -1], [3, 150, 47]),
    ]
).astype(np.int32)
NOWHERE = Rotation(jnp.zeros(0), jnp.zeros(0))
REAL = {"rows": np.ones((ROWS, TOKENS), bool), "packed": SEGMENTS >= 0}


def _arrays(dtype="float32"):
    rng = np.random.default_rng(0)
    K, N, H = CONFIG.num_kv_heads, CONFIG.heads_per_kv, CONFIG.head_dim
    shapes = [(ROWS, TOKENS, K, N, H), *[(ROWS, TOKENS, K, H)] * 2, (ROWS, TOKENS, K, N, H)]
    return [jnp.asarray(2 * rng.standard_normal(shape), dtype) for shape in shapes]


def _of(function, dtype, real):
    """Returns the result at real tokens, and the gradients of its sum under random weights."""
    *inputs, weights = _arrays(dtype)
    weights = jnp.where(real[:, :, None, None, None], weights, 0)

    @jax.jit
    def run(*inputs):
        mixed, backward = jax.vjp(function, *inputs)
        return [mixed * real[:, :, None, None, None], *backward(weights.astype(mixed.dtype))]

    return [np.asarray(x, np.float32) for x in run(*inputs)]


def _dense(segments, window, queries, keys, values):
    config = dataclasses.replace(CONFIG, attention="einsum", dtype=str(queries.dtype))
    layer = AttentionLayer(jnp.int32(0), jnp.int32(window or TOKENS), jnp.bool_(bool(window)))
    context = Context(jnp.zeros((ROWS, TOKENS), int), segments, None, NOWHERE, None)
    return attend(config, blocks.QKV(queries, keys, values), layer, context)


def _close(found, expected, dtype):
    # Sums of bfloat16 with 8 bits of mantissa, in another order.
    share = 1e-5 if dtype == "float32" else 0.03
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=share * np.abs(y).max())


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Cuts rows of 200 tokens into several blocks."""
    monkeypatch.setattr(flash, "_LARGEST_BLOCK", 128)
    monkeypatch.setattr(blocks, "_SCORES_BYTES", 200_000)


@pytest.mark.nightly
@pytest.mark.samples("rows-70-float32", "packed-30-bfloat16")
@pytest.mark.parametrize(
    ("rows", "window", "dtype"),
    [
        ("rows", None, "float32"),
        ("rows", 70, "float32"),
        ("packed", None, "float32"),
        ("packed", 30, "float32"),
        ("packed", 30, "bfloat16"),
    ],
)
def test_splash_gives_the_values_and_gradients_of_dense_attention(rows, window, dtype):
    segments = SEGMENTS if rows == "packed" else None

    def by_splash(queries, *others):
        scaled = blocks.QKV(queries * CONFIG.attention_scale, *others)
        return flash.splash(scaled, segments, window, interpret=True)

    expected = _of(functools.partial(_dense, segments, window), dtype, REAL[rows])
    _close(_of(by_splash, dtype, REAL[rows]), expected, dtype)


@pytest.mark.nightly
@pytest.mark.samples("packed-bfloat16")
@pytest.mark.parametrize(
    ("rows", "dtype"), [("rows", "float32"), ("packed", "float32"), ("packed", "bfloat16")]
)
def test_triton_gives_the_values_and_gradients_of_dense_attention(rows, dtype):
    segments = SEGMENTS if rows == "packed" else None

    def by_triton(*inputs):
        return flash.triton(blocks.QKV(*inputs), segments, CONFIG.attention_scale, interpret=True)

    expected = _of(functools.partial(_dense, segments, None), dtype, REAL[rows])
    _close(_of(by_triton, dtype, REAL[rows]), expected, dtype)


@pytest.mark.parametrize("window", [None, 70])
def test_cudnn_is_asked_for_causal_attention_and_the_window(window, monkeypatch):
    asked = []
    plain = jax.nn.dot_product_attention

    def spy(*inputs, implementation, **arguments):
        asked.append((implementation, arguments))
        return plain(*inputs, implementation="xla", **arguments)

    monkeypatch.setattr(jax.nn, "dot_product_attention", spy)
    config = dataclasses.replace(
        CONFIG,
        dtype="bfloat16",
        sliding_layers=(window is not None,),
        sliding_window=window or 0,
    )
    layer = AttentionLayer(jnp.int32(0), jnp.int32(window or TOKENS), jnp.bool_(bool(window)))
    context = Context(jnp.zeros((ROWS, TOKENS), int), None, None, NOWHERE, None)

    def by_cudnn(*inputs):
        with compiling_for("gpu"):
            return attend(config, blocks.QKV(*inputs), layer, context)

    found = _of(by_cudnn, "bfloat16", REAL["rows"])
    ((name, arguments),) = asked
    assert name == "cudnn"
    assert "mask" not in arguments
    assert "bias" not in arguments
    expected = _of(functools.partial(_dense, None, window), "bfloat16", REAL["rows"])
    _close(found, expected, "bfloat16")


MODEL = dataclasses.replace(tiny.VARIANTS["sliding"], sliding_window=50)
IDS = np.random.default_rng(1).integers(0, 11, (4, TOKENS)).astype(np.int32)
PACKED = dict(positions=np.tile(np.arange(TOKENS), (4, 1)), segments=np.tile(SEGMENTS, (2, 1)))
# A prompt of 40 tokens that two completions share.
SHARED = dict(
    positions=np.tile([*range(100), *range(40, 140)], (4, 1)),
    segments=np.tile(np.repeat([-1, 1, 2], [40, 60, 100]), (4, 1)),
    prompts=np.zeros((4, TOKENS), int),
)


def _states(config, layout=None, **rows):
    """Computes hidden states and gradients of a model, at real tokens."""
    real = rows["segments"] >= 0 if "segments" in rows and "prompts" not in rows else True
    weights = np.random.default_rng(2).standard_normal((4, TOKENS, config.embed_dim))
    weights = np.where(np.broadcast_to(real, IDS.shape)[..., None], weights, 0)

    def loss(params):
        states = hidden_states(config, params, IDS, **rows)
        return (states * weights).sum(), states

    with using(layout or meshes.layout()):
        (_, states), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(tiny.params(config))
    return [np.where(weights == 0, 0, states), *jax.tree.leaves(grads)]


@pytest.mark.nightly
@pytest.mark.samples("shared, and two devices share a kv head")
@pytest.mark.parametrize(
    ("rows", "mesh"),
    [(PACKED, {"fsdp": 2, "tensor": 2}), (SHARED, {"tensor": 4})],
    ids=["packed", "shared, and two devices share a kv head"],
)
def test_blocks_of_queries_give_what_all_at_once_do(rows, mesh):
    expected = _states(dataclasses.replace(MODEL, attention="einsum"), **rows)
    layout = meshes.layout(**mesh).grouped(MODEL.num_kv_heads)
    found = _states(dataclasses.replace(MODEL, attention="blocks"), layout, **rows)
    _close(found, expected, "float32")


@pytest.mark.nightly
def test_splash_on_shards_follows_the_window_of_each_layer(monkeypatch):
    monkeypatch.setattr(flash, "splash", functools.partial(flash.splash, interpret=True))
    model = dataclasses.replace(MODEL, remat="full")
    expected = _states(dataclasses.replace(model, attention="einsum"), **PACKED)
    with compiling_for("tpu"):
        on = meshes.layout(tensor=4).grouped(MODEL.num_kv_heads)
        found = _states(model, on, **PACKED)
    _close(found, expected, "float32")


HALF = dataclasses.replace(CONFIG, dtype="bfloat16")
LONG = AttentionCall(row_tokens=128, packed=False, shared=False, slides=False)


@pytest.mark.parametrize(
    ("platform", "config", "call", "kernel"),
    [
        ("cpu", HALF, {}, None),
        ("tpu", CONFIG, {"packed": True, "slides": True}, "splash"),
        ("tpu", CONFIG, {"shared": True}, None),
        ("tpu", CONFIG, {"row_tokens": 127}, None),
        ("gpu", HALF, {"slides": True}, "cudnn"),
        ("gpu", HALF, {"packed": True}, "triton"),
        ("gpu", HALF, {"packed": True, "slides": True}, None),
        ("gpu", CONFIG, {}, None),
        ("gpu", dataclasses.replace(HALF, head_dim=256), {}, None),
        ("gpu", dataclasses.replace(HALF, head_dim=20), {}, None),
        ("tpu", dataclasses.replace(HALF, attention="dot_product"), {}, None),
    ],
)
def test_the_kernel_is_one_that_can_express_the_call(platform, config, call, kernel):
    with compiling_for(platform):
        assert kernel_for(config, LONG._replace(**call)) == kernel


@pytest.mark.parametrize(
    ("name", "platform", "call", "says"),
    [
        ("splash", "cpu", {}, "is for TPUs, not for a CPU"),
        ("cudnn", "tpu", {}, "is for GPUs, not for a TPU"),
        ("cudnn", "gpu", {"packed": True}, "rows of one sequence"),
        ("triton", "gpu", {"slides": True}, "does not support sliding windows"),
        ("splash", "tpu", {"shared": True}, "trainer.batching=shared"),
    ],
)
def test_a_kernel_that_cannot_is_refused_in_a_line(name, platform, call, says):
    config = dataclasses.replace(HALF, attention=name)
    with compiling_for(platform), pytest.raises(ValueError, match=says) as error:
        kernel_for(config, LONG._replace(**call))
    assert "model.attention=auto" in str(error.value)
    assert "\n" not in str(error.value)


def test_packed_rows_attend_by_blocks_where_jax_has_no_triton_kernel(monkeypatch):
    monkeypatch.setattr(flash, "_TRITON", "jax.experimental.no_such_kernel")
    with compiling_for("gpu"):
        assert kernel_for(HALF, LONG._replace(packed=True)) is None


def test_cudnn_wants_half_precision():
    config = dataclasses.replace(CONFIG, attention="cudnn")
    with compiling_for("gpu"), pytest.raises(ValueError, match="dtype=float32"):
        kernel_for(config, LONG)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(200, (256, 256)), (512, (512, 512)), (1025, (384, 1152)), (32768, (512, 32768))],
)
def test_blocks_are_few_and_hold_the_row_closely(tokens, expected, monkeypatch):
    monkeypatch.setattr(flash, "_LARGEST_BLOCK", 512)
    assert flash._blocks(tokens) == expected
