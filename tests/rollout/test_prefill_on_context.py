"""Devices along `context` share the positions of prompts that are prefilled, and then the slots."""

import dataclasses

import jax
import numpy as np
import pytest

from rl_sync.models.placement import abstract_params, shardings
from rl_sync.models.platform import compiling_for
from rl_sync.models.sharding import using
from rl_sync.rollout import slots
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from tests.models import tiny
from tests.models.meshes import engine_layout

LENGTH = 96
CONFIG = dataclasses.replace(tiny.CONFIG, num_layers=2, vocab_size=12, max_length=LENGTH)
WIDE = dataclasses.replace(CONFIG, head_dim=64, query_scale=0.3)
SLIDING = dataclasses.replace(
    tiny.VARIANTS["sliding"], vocab_size=12, max_length=LENGTH, sliding_window=9
)
ONE_HEAD = dataclasses.replace(CONFIG, num_kv_heads=1)
EXPERTS = dataclasses.replace(tiny.VARIANTS["experts"], vocab_size=12, max_length=LENGTH)
CASES = {
    "context 4": (CONFIG, {"context": 4}, "cpu", {}),
    "context 2, tensor 2": (CONFIG, {"context": 2, "tensor": 2}, "cpu", {}),
    "divided cache": (ONE_HEAD, {"context": 2, "tensor": 2}, "cpu", {}),
    "data and context": (SLIDING, {"data": 2, "context": 2}, "cpu", {}),
    "context 3, which no bucket divides": (CONFIG, {"context": 3}, "cpu", {"slots": 6}),
    "lines of a GPU": (CONFIG, {"context": 2, "tensor": 2}, "gpu", {}),
    "lines of a TPU": (WIDE, {"context": 4}, "tpu", {}),
    "pages": (CONFIG, {"context": 4}, "cpu", {"cache_bytes": 1 << 20, "cache": "recompute"}),
    "experts": (EXPERTS, {"context": 2, "experts": 2}, "cpu", {}),
    "routes": (EXPERTS, {"context": 4}, "cpu", {"records_routes": True}),
}
cases = pytest.mark.parametrize(
    ("config", "mesh", "platform", "options"), CASES.values(), ids=CASES
)


def engine(config, on, seed=0, slots=4, **options):
    on = on.grouped(config.num_kv_heads)
    made = Engine(config, on, EngineOptions(slots=slots, chunk_tokens=4, **options))
    made.load(weights(config, on, seed), version=0)
    return made


def weights(config, on, seed=0):
    params = tiny.params(config, seed, spread=0.2)
    return jax.device_put(params, shardings(abstract_params(config, on)))


def prompt(tokens):
    return np.random.default_rng(tokens).integers(2, 11, tokens).astype(np.int32)


def turns(made, config):
    """Plays two turns of sequences of all lengths; new weights come in the midst of the first."""
    sampling = Sampling(max_new_tokens=10, stop_ids=())
    greedy = dataclasses.replace(sampling, greedy=True)
    requests = [
        CompletionRequest(prompt(tokens), (sampling, greedy)[i % 2], 1, (7, i), held=True)
        for i, tokens in enumerate((60, 5, 33, 40, 1, 28))
    ]
    made.submit(requests)
    firsts = made.step()
    made.load(weights(config, made._batch.layout, 1), version=1)
    firsts += made.advance()
    for first in sorted(firsts, key=lambda one: one.ticket):
        made.extend(first.handle, prompt(9 * first.ticket % 16 + 1), greedy, seed=(8,))
    seconds = made.advance()
    return [sorted(some, key=lambda one: one.ticket) for some in (firsts, seconds)]


@pytest.mark.nightly
@pytest.mark.samples(gate=("data and context",))
@cases
def test_completions_are_those_of_one_device(config, mesh, platform, options):
    wanted = turns(engine(config, engine_layout(), **options), config)
    with compiling_for(platform):
        found = turns(engine(config, engine_layout(**mesh), **options), config)
    for some, others in zip(found, wanted, strict=True):
        assert len(some) == 6
        for one, other in zip(some, others, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            assert one.versions.tolist() == other.versions.tolist()
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
            if options.get("records_routes"):
                assert one.routes.first == other.routes.first
                np.testing.assert_array_equal(one.routes.experts, other.routes.experts)


@pytest.mark.gate
@pytest.mark.parametrize("mesh", [{"context": 4}, {"context": 2, "tensor": 2}])
def test_each_device_computes_an_equal_part_of_a_single_prompt(mesh):
    def flops(on):
        with using(on.of_positions):
            params = abstract_params(CONFIG, on)
            tokens = jax.ShapeDtypeStruct((1, 64), np.int32)
            return slots.prefill.lower(CONFIG, params, tokens).compile().cost_analysis()["flops"]

    whole, part = flops(engine_layout()), flops(engine_layout(**mesh))
    assert part < 0.32 * whole


def test_slots_are_cut_over_context_and_parameters_are_not():
    on = engine_layout(context=4)
    with using(on):
        empty = slots.empty_slots(CONFIG, 8, 16, 4)
    L, Z, B, K, H, C = empty.cache.keys.shape
    assert {shard.data.shape for shard in empty.cache.keys.addressable_shards} == {
        (L, Z, B // 4, K, H, C)
    }
    assert all(
        leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(abstract_params(CONFIG, on))
    )
