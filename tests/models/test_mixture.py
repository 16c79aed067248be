"""Mixtures of experts on meshes: the same numbers as on one device, however tokens are routed."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models.config import Experts
from rl_sync.models.logprobs import hidden_logprobs
from rl_sync.models.mixture import products
from rl_sync.models.mixture.products import routes_of
from rl_sync.models.placement import abstract_params
from rl_sync.models.sharding import Layout, using
from rl_sync.models.transformer import (
    hidden_states,
    logits,
    output_projection,
    prefill,
)
from rl_sync.models.vocabulary.token_sets import LogprobSettings
from tests.models import tiny
from tests.models.meshes import layout

CONFIG = dataclasses.replace(tiny.CONFIG, experts=Experts(8, 2, 12), qk_norm=True)
TOKENS = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (4, 12))
MESHES = {
    "experts": layout(experts=4),
    "experts and fsdp": layout(experts=2, fsdp=2),
    "experts and data": layout(experts=2, data=2),
    "experts and tensor": layout(experts=2, tensor=2),
    "tensor": layout(tensor=4).grouped(CONFIG.num_kv_heads),
    "fsdp": layout(fsdp=4),
}


def loss(tokens, params):
    scores = logits(CONFIG, params, hidden_states(CONFIG, params, tokens))
    return jnp.sum(jnp.sin(scores)), scores


def on(mesh: Layout, params, tokens=TOKENS):
    with using(mesh):
        placed = jax.tree.map(
            lambda x, like: jax.device_put(x, like.sharding), params, abstract_params(CONFIG, mesh)
        )
        run = jax.jit(jax.value_and_grad(functools.partial(loss, tokens), has_aux=True))
        (_, scores), gradient = run(placed)
    return jax.device_get((scores, gradient))


@functools.cache
def params(seed=0):
    return tiny.params(CONFIG, seed)


@functools.cache
def lopsided():
    """Returns parameters with which all tokens go to the same two experts."""
    changed = jax.tree.map(np.array, params())
    changed["blocks"]["mlp"]["router"][...] = 0.0  # A tie: the first experts are chosen.
    return changed


def assert_close(one, other):
    scale = max(float(np.abs(x).max()) for x in jax.tree.leaves(one))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, scale), rtol=1e-4),
        one,
        other,
    )


@functools.cache
def alone(which):
    return on(Layout.single(), {"usual": params, "lopsided": lopsided}[which]())


@pytest.mark.nightly
@pytest.mark.samples("experts and tensor", gate=("experts and fsdp",))
@pytest.mark.parametrize("name", MESHES)
def test_a_mesh_gives_the_values_and_gradients_of_one_device(name):
    assert_close(alone("usual"), on(MESHES[name], params()))


@pytest.mark.nightly
def test_nothing_is_dropped_if_all_tokens_want_the_same_experts():
    assert_close(alone("lopsided"), on(MESHES["experts"], lopsided()))


@pytest.mark.nightly
@pytest.mark.samples("lopsided", gate=())
@pytest.mark.parametrize("which", ["usual", "lopsided"])
def test_tokens_that_take_turns_give_the_same(which, monkeypatch):
    # 24 choices of 16 numbers for each of 4 devices: 6 KB at once, so five turns.
    monkeypatch.setattr(products, "_EXCHANGE_BYTES", 1500)
    given = {"usual": params, "lopsided": lopsided}[which]()
    assert_close(alone(which), on(MESHES["experts"], given))


@pytest.mark.nightly
@pytest.mark.samples("experts and tensor", gate=())
@pytest.mark.parametrize("name", ["experts", "experts and tensor"])
def test_a_step_of_decoding_gives_the_same(name):
    def run(params):
        cache = prefill(CONFIG, params, TOKENS[:, :8]).cache
        return tiny.decode_step(CONFIG, params, TOKENS[:, 8], np.full(4, 8), cache, span=16).hidden

    expected = jax.jit(run)(params())
    with using(MESHES[name]):
        like = abstract_params(CONFIG, MESHES[name])
        placed = jax.tree.map(lambda x, one: jax.device_put(x, one.sharding), params(), like)
        found = jax.jit(run)(placed)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.nightly
def test_experts_on_devices_with_the_same_tokens_add_up():
    rules = tuple(
        (name, {"experts": ("tensor",), "mlp": ()}.get(name, axes))
        for name, axes in layout(tensor=2).rules
    )
    mesh = Layout(layout(tensor=2).mesh, rules)
    assert_close(alone("usual"), on(mesh, params()))


def test_the_router_computes_in_float32():
    # The two best scores of each token differ by less than bfloat16 tells apart.
    rng = np.random.default_rng(1)
    tokens = jnp.asarray(rng.normal(size=(64, 16)), jnp.bfloat16)
    router = rng.normal(size=(16, 8)).astype(np.float32)
    routes = routes_of(Experts(8, 2, 12), tokens, jnp.asarray(router))
    kernel = np.asarray(jnp.asarray(router).astype(jnp.bfloat16)).astype(np.float64)
    exact = np.asarray(tokens).astype(np.float64) @ kernel
    np.testing.assert_array_equal(routes.experts, np.argsort(-exact, axis=1)[:, :2])
    assert routes.weights.dtype == jnp.float32


UNEVEN = {
    "five experts": (Experts(5, 2, 12), {"experts": 4}, (4, 9)),
    "one expert a token, three rows": (Experts(8, 1, 10, normalize=False), {"experts": 4}, (3, 9)),
    "all experts for one token": (Experts(4, 4, 12), {"experts": 4}, (4, 1)),
    "positions cut, too": (Experts(4, 4, 12), {"experts": 2, "context": 2}, (3, 11)),
}


@pytest.mark.nightly
@pytest.mark.parametrize(("experts", "sizes", "shape"), UNEVEN.values(), ids=UNEVEN)
def test_sizes_that_devices_do_not_divide_give_the_same(experts, sizes, shape):
    config = dataclasses.replace(tiny.CONFIG, experts=experts)
    given, mesh = tiny.params(config), layout(**sizes)
    tokens = np.random.default_rng(2).integers(0, config.vocab_size, shape)

    def run(params):
        hidden = hidden_states(config, params, tokens)
        kernel = output_projection(config, params)
        logprobs, _ = hidden_logprobs(kernel, hidden, tokens, LogprobSettings())
        return jnp.sum(jnp.sin(logprobs)), logprobs

    expected = jax.device_get(jax.jit(jax.value_and_grad(run, has_aux=True))(given))
    with using(mesh):
        like = abstract_params(config, mesh)
        placed = jax.tree.map(lambda x, one: jax.device_put(x, one.sharding), given, like)
        found = jax.device_get(jax.jit(jax.value_and_grad(run, has_aux=True))(placed))
    assert_close(expected, found)
