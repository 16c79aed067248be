"""Explorers record the experts of tokens, and the trainer sends the tokens to the same ones."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.environments.dialogue.trajectory import (
    Trajectory,
    append_reply,
    append_turn,
    begin_segment,
)
from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.models.config import Experts
from rl_sync.models.mixture.products import ExpertKernels, mixed, routes_of
from rl_sync.models.placement import abstract_params
from rl_sync.models.sharding import using
from rl_sync.models.transformer import hidden_states, prefill
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.token_records import RecordedRoutes, RouteShape
from tests.models import tiny
from tests.models.meshes import layout
from tests.models.test_mixture import assert_close
from tests.rollout.turns import EOS, GIVEN, LENGTH, PROMPT, decode, make_engine

CONFIG = dataclasses.replace(
    tiny.CONFIG, max_length=LENGTH, experts=Experts(8, 2, 12), qk_norm=True
)
SHAPE = RouteShape(layers=2, per_token=2, experts=8)


@functools.cache
def params(seed=0):
    return tiny.params(CONFIG, seed)


def engine_of(**options):
    return make_engine(CONFIG, params(), records_routes=True, **options)


def live_routes(tokens, of=None):
    """Returns the experts that a full pass sends the tokens of a sequence to."""
    run = functools.partial(prefill, CONFIG, records_routes=True)
    return np.asarray(run(of or params(), np.asarray(tokens)[None]).routes)[0]


def recorded(completion, prompt):
    """Returns the record of a whole sequence."""
    found = SHAPE.unrecorded(len(prompt) + len(completion.tokens))
    completion.routes.write(found)
    return found


def test_the_model_config_says_the_shape_of_routes():
    assert CONFIG.routes == SHAPE
    assert tiny.CONFIG.routes is None
    assert SHAPE.dtype == np.uint8
    many = RouteShape(1, 1, 256)
    assert many.dtype == np.uint16  # 255 would be a number that stands for no record.
    assert (many.unrecorded(3) == 65535).all()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options", [{}, {"chunk_tokens": 3, "slots": 2}, {"chunk_tokens": 16, "slots": 16}]
)
def test_completions_have_the_experts_of_a_full_pass(options):
    engine = engine_of(decode=decode, **options)
    rng = np.random.default_rng(3)
    requests = [
        CompletionRequest(
            rng.integers(2, 11, size).astype(np.int32),
            Sampling(most, (EOS,), stop_strings=stops),
            completions,
            seed=(size,),
        )
        for size, most, completions, stops in [
            (1, 12, 3, ()),
            (9, 5, 1, ("cch", "ff")),
            (4, 1, 2, ()),
            (6, 20, 2, ("ee",)),
        ]
    ]
    for request, found in zip(requests, engine.generate(requests), strict=True):
        for one in found:
            whole = np.concatenate([request.prompt, one.tokens])
            # The last token is never fed to the model.
            assert one.routes.first == 0
            assert len(one.routes.experts) == len(whole) - 1
            np.testing.assert_array_equal(one.routes.experts, live_routes(whole)[:-1])
            assert (recorded(one, request.prompt)[-1] == 255).all()


@pytest.mark.nightly
@pytest.mark.samples(str(Experts(300, 3, 4)), gate=())
@pytest.mark.parametrize(
    "experts", [Experts(300, 3, 4), Experts(1, 1, 4), Experts(4, 4, 4)], ids=str
)
def test_one_expert_all_of_them_and_more_than_a_byte_tells_apart_are_recorded(experts):
    config = dataclasses.replace(CONFIG, experts=experts)
    params = tiny.params(config)
    engine = make_engine(config, params, records_routes=True)
    ((one,),) = engine.generate([CompletionRequest(PROMPT, Sampling(9, ()), seed=(3,))])
    whole = np.concatenate([PROMPT, one.tokens])[None]
    live = prefill(config, params, whole, records_routes=True).routes
    assert one.routes.experts.dtype == (np.uint16 if experts.count > 255 else np.uint8)
    np.testing.assert_array_equal(one.routes.experts, np.asarray(live)[0, :-1])
    found = hidden_states(config, params, whole, routes=live)
    np.testing.assert_allclose(found, hidden_states(config, params, whole), atol=1e-5)


@pytest.mark.gate
@pytest.mark.samples("steps")
@pytest.mark.parametrize("stepped_tokens", [64, 0], ids=["steps", "prefill"])
def test_replies_of_an_episode_have_the_experts_of_all_tokens_before_them(stepped_tokens):
    engine = engine_of(stepped_tokens=stepped_tokens)
    sampling = Sampling(6, (EOS,))
    engine.submit([CompletionRequest(PROMPT, sampling, seed=(1,), held=True)])
    (reply,) = engine.advance()
    trajectory = begin_segment(Trajectory(), PROMPT)

    def said(trajectory, reply):
        return append_reply(
            trajectory, reply.tokens, reply.logprobs, reply.versions, routes=reply.routes
        )

    trajectory = append_turn(said(trajectory, reply), GIVEN)
    engine.extend(reply.handle, GIVEN, sampling, seed=(2,))
    (again,) = engine.advance()
    trajectory = said(trajectory, again)
    found = SHAPE.unrecorded(len(trajectory.context))
    for one in trajectory.segments[0].routes:
        one.write(found)
    np.testing.assert_array_equal(found[:-1], live_routes(trajectory.context)[:-1])
    assert (again.routes.first == 0) == (stepped_tokens == 0)


@pytest.mark.gate
def test_weights_that_arrive_in_flight_keep_the_experts_of_earlier_tokens():
    other = tiny.params(CONFIG, seed=9)
    engine = engine_of(chunk_tokens=4)
    engine.submit([CompletionRequest(PROMPT, Sampling(12, ()), seed=(5,))])
    engine.step()
    engine.load(other, 1)
    (one,) = engine.advance()
    whole = np.concatenate([PROMPT, one.tokens])
    first = len(PROMPT) + 3  # The first chunk fed the prompt's last token and three more.
    np.testing.assert_array_equal(one.routes.experts[:first], live_routes(whole)[:first])
    drawn_by = one.versions
    assert (drawn_by[:4] == 0).all()
    assert (drawn_by[4:] == 1).all()
    # Layer 0 depends on the token alone but for attention: most tokens route anew.
    assert (one.routes.experts[first:] != live_routes(whole)[first:-1]).any()


def test_the_first_record_of_a_token_is_valid():
    row = SHAPE.unrecorded(3)
    RecordedRoutes(0, np.full((2, 2, 2), 1, np.uint8)).write(row)
    RecordedRoutes(1, np.full((5, 2, 2), 2, np.uint8)).write(row)
    assert row[:, 0, 0].tolist() == [1, 1, 2]


def test_the_last_token_of_a_sequence_has_no_record_and_chooses_for_itself():
    of_sequence = RouteShape(layers=1, per_token=2, experts=4).unrecorded(3)
    RecordedRoutes(0, np.array([[[0, 1]], [[1, 2]]], np.uint8)).write(of_sequence)
    router = jnp.array([[1.0, 0.0, 2.0, 3.0]])  # All tokens prefer expert 3, then 2.
    found = routes_of(Experts(4, 2, 12), jnp.ones((3, 1)), router, jnp.asarray(of_sequence[:, 0]))
    assert found.experts.tolist() == [[0, 1], [1, 2], [3, 2]]
    assert np.bincount(found.experts.reshape(-1), minlength=4).tolist() == [1, 2, 2, 1]
    np.testing.assert_allclose(found.weights[2], [np.e / (1 + np.e), 1 / (1 + np.e)], rtol=1e-6)


TOKENS = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (4, 12)).astype(np.int32)


def others(seed=1):
    """Draws experts, two different ones for each token and layer."""
    rng = np.random.default_rng(seed)
    routes = rng.permuted(np.tile(np.arange(8, dtype=np.uint8), (4, 12, 2, 1)), axis=-1)[..., :2]
    routes[:, -1] = 255
    return routes


def value(params, routes, config=CONFIG):
    hidden = hidden_states(config, params, TOKENS, routes=routes)
    return jnp.sum(jnp.sin(hidden)), hidden


@pytest.mark.nightly
def test_replaying_the_experts_of_a_pass_changes_nothing():
    routes = prefill(CONFIG, params(), TOKENS, True).routes
    alone = jax.value_and_grad(value, has_aux=True)(params(), None)
    again = jax.value_and_grad(value, has_aux=True)(params(), routes)
    assert_close(alone, again)


@pytest.mark.gate
def test_replayed_experts_are_used_and_the_router_learns():
    (_, before), _ = jax.value_and_grad(value, has_aux=True)(params(), None)
    (_, after), gradient = jax.value_and_grad(value, has_aux=True)(params(), others())
    assert not np.allclose(before[:, :-1], after[:, :-1], atol=1e-2)
    assert np.abs(gradient["blocks"]["mlp"]["router"]).max() > 1e-3
    # Dense: each expert's output of every token, and the recorded two by their softmax.
    layer = jax.tree.map(lambda x: x[0], params()["blocks"]["mlp"])
    x = np.random.default_rng(2).normal(size=(12, 16)).astype(np.float32)
    picked = others()[0, :, 0].copy()
    picked[-1] = [3, 5]
    scores = np.exp(x @ layer["router"])
    scores /= scores.sum(axis=1, keepdims=True)
    weights = np.take_along_axis(scores, picked.astype(int), axis=1)
    weights /= weights.sum(axis=1, keepdims=True)
    gate, up = np.moveaxis(np.einsum("zd,edgf->gzef", x, layer["gate_up"]), 0, 0)
    hidden = gate / (1 + np.exp(-gate)) * up
    out = np.einsum("zef,efd->zed", hidden, layer["down"])
    expected = sum(weights[:, [i]] * out[np.arange(12), picked[:, i].astype(int)] for i in range(2))
    routes = routes_of(CONFIG.experts, jnp.asarray(x), layer["router"], jnp.asarray(picked))
    found = mixed(CONFIG, jnp.asarray(x), routes, ExpertKernels(layer["gate_up"], layer["down"]))
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.samples(gate=("full",))
@pytest.mark.parametrize("remat", ["full", "dots"])
def test_recomputed_activations_see_the_same_experts(remat):
    config = dataclasses.replace(CONFIG, remat=remat)
    run = jax.grad(lambda params, config: value(params, others(), config)[0])
    expected, found = run(params(), CONFIG), run(params(), config)
    assert_close(expected, found)


MESHES = {
    "experts": layout(experts=4),
    "experts and context": layout(experts=2, context=2),
    "data and tensor": layout(data=2, tensor=2),
    "context": layout(context=4),
}


@pytest.mark.nightly
@pytest.mark.samples(gate=("experts and context",))
@pytest.mark.parametrize("name", MESHES)
def test_a_mesh_replays_as_one_device_does(name):
    def run(params, routes):
        return jax.value_and_grad(
            lambda params: jnp.sum(
                jnp.sin(
                    Forward(CONFIG, 1.0, 1 << 20).logprobs(
                        params, {}, RowInputs(TOKENS, routes=routes)
                    )
                )
            )
        )(params)

    expected = jax.jit(run)(params(), others())
    with using(MESHES[name]):
        like = abstract_params(CONFIG, MESHES[name])
        placed = jax.tree.map(lambda x, one: jax.device_put(x, one.sharding), params(), like)
        found = jax.device_get(jax.jit(run)(placed, others()))
    assert_close(expected, found)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["experts", "data and tensor"])
def test_an_engine_on_a_mesh_records_the_same(name):
    requests = [CompletionRequest(PROMPT, Sampling(6, ()), 3, seed=(4,))]
    (expected,) = engine_of().generate(requests)
    like = abstract_params(CONFIG, MESHES[name])
    engine = Engine(
        CONFIG, MESHES[name], EngineOptions(slots=8, chunk_tokens=4, records_routes=True)
    )
    engine.load(jax.tree.map(lambda x, one: jax.device_put(x, one.sharding), params(), like), 0)
    (found,) = engine.generate(requests)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.routes.experts, other.routes.experts)
