"""Quantized kernels: near the model that they were made from, and exactly as the numbers say."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models.config import Experts
from rl_sync.models.placement import abstract_params, cast_abstract
from rl_sync.models.quantization import quantized
from rl_sync.models.sharding import Layout, using
from rl_sync.models.transformer import hidden_states, logits, param_shapes
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from tests.models import tiny
from tests.models.meshes import layout

MODELS = {
    "plain": dataclasses.replace(tiny.CONFIG, qkv_bias=True),
    "experts": dataclasses.replace(tiny.CONFIG, experts=Experts(4, 2, 12), qk_norm=True),
}
DTYPES = ("int8", "float8_e4m3fn")
TOKENS = np.random.default_rng(0).integers(0, 11, (4, 12))


def of(name, dtype):
    """Returns the config and the parameters of a model, quantized."""
    config = dataclasses.replace(MODELS[name], quantization=dtype)
    return config, jax.jit(quantized, static_argnums=0)(config, tiny.params(MODELS[name]))


def dequantized(params):
    if not isinstance(params, dict):
        return np.asarray(params, np.float32)
    found = {}
    for name, value in params.items():
        if f"{name}_scale" in params:
            found[name] = np.asarray(value, np.float32) * np.asarray(params[f"{name}_scale"])
        elif not name.endswith("_scale"):
            found[name] = dequantized(value)
    return found


@functools.partial(jax.jit, static_argnums=0)
def scores(config, params):
    return logits(config, params, hidden_states(config, params, TOKENS))


@pytest.mark.nightly
@pytest.mark.samples("int8-plain", "float8_e4m3fn-experts", gate=())
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_quantized_model_computes_with_its_numbers_times_their_scales(name, dtype):
    config, params = of(name, dtype)
    shapes = param_shapes(config)
    jax.tree.map(lambda x, like: np.testing.assert_equal(x.shape, like.shape), params, shapes)
    jax.tree.map(lambda x, like: np.testing.assert_equal(x.dtype, like.dtype), params, shapes)
    expected = scores(MODELS[name], dequantized(params))
    np.testing.assert_allclose(scores(config, params), expected, atol=1e-4)


@pytest.mark.gate
@pytest.mark.parametrize(("dtype", "error"), [("int8", 1 / 254), ("float8_e4m3fn", 1 / 16)])
def test_a_weight_is_off_by_at_most_half_a_step_of_its_output(dtype, error):
    for name in MODELS:
        before, after = tiny.params(MODELS[name]), dequantized(of(name, dtype)[1])
        for part, kernel, inputs in [
            ("attention", "qkv", (1,)),
            ("attention", "out", (1, 2, 3)),
            ("mlp", "gate_up", (2,) if name == "experts" else (1,)),
            ("mlp", "down", (2,) if name == "experts" else (1,)),
        ]:
            one, other = (np.asarray(x["blocks"][part][kernel]) for x in (before, after))
            greatest = np.abs(one).max(axis=inputs, keepdims=True)
            assert (np.abs(one - other) <= greatest * error * 1.01).all(), kernel
            assert (one != other).any()


@pytest.mark.gate
def test_norms_routers_biases_and_embeddings_stay():
    for name in MODELS:
        config, params = of(name, "int8")
        before = tiny.params(MODELS[name])
        np.testing.assert_array_equal(params["embedding"], before["embedding"])
        small = {jax.tree_util.keystr(p) for p, x in _leaves(params) if x.dtype == jnp.int8}
        assert len(small) == 4
        for path, x in _leaves(before):
            if jax.tree_util.keystr(path) not in small:
                np.testing.assert_array_equal(x, dict(_named(params))[jax.tree_util.keystr(path)])
        held = cast_abstract(abstract_params(config, Layout.single()), "bfloat16")
        dtypes = {jax.tree_util.keystr(p): str(x.dtype) for p, x in _leaves(held)}
        assert dtypes["['blocks']['attention']['qkv']"] == "int8"
        assert dtypes["['blocks']['attention']['qkv_scale']"] == "float32"
        assert dtypes["['embedding']"] == "bfloat16"


def _leaves(tree):
    return jax.tree_util.tree_leaves_with_path(tree)


def _named(tree):
    return ((jax.tree_util.keystr(path), x) for path, x in _leaves(tree))


MESHES = {
    "tensor": layout(tensor=4).grouped(2),
    "experts": layout(experts=2, tensor=2),
    "data": layout(data=4),
}


@pytest.mark.nightly
@pytest.mark.samples(gate=("tensor-int8", "experts-float8_e4m3fn"))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mesh", MESHES)
def test_a_mesh_decodes_as_one_device_does(mesh, dtype):
    config, params = of("experts", dtype)
    requests = [CompletionRequest(np.array([3, 4]), Sampling(8, (), greedy=True), seed=(1,))] * 4

    def decoded(on, params):
        engine = Engine(config, on, EngineOptions(slots=4))
        engine.load(params, 0)
        return [one for (one,) in engine.generate(requests)]

    expected = decoded(Layout.single(), params)
    like = abstract_params(config, MESHES[mesh])
    with using(MESHES[mesh]):
        placed = jax.tree.map(lambda x, one: jax.device_put(x, one.sharding), params, like)
    for one, other in zip(expected, decoded(MESHES[mesh], placed), strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
