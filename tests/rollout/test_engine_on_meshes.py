"""An engine on a mesh draws what it draws on one device, from shards of weights and caches."""

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
from tests.models.meshes import layout

pytestmark = pytest.mark.nightly

# The vocabulary divides evenly, so that devices exchange logits.
CONFIG = dataclasses.replace(tiny.CONFIG, num_layers=1, vocab_size=12)
PARAMS = tiny.params(CONFIG)
PROMPTS = [np.array(ids, np.int32) for ids in ([3, 4, 5, 6], [7, 8], [2, 2, 9], [10], [5] * 6)]
SAMPLING = Sampling(max_new_tokens=6, stop_ids=(1,))


def _engine(on):
    on = on.grouped(CONFIG.num_kv_heads)
    engine = Engine(CONFIG, on, EngineOptions(slots=8, chunk_tokens=4))
    engine.load(jax.device_put(PARAMS, shardings(abstract_params(CONFIG, on))), version=0)
    return engine


@pytest.fixture(scope="module")
def requests():
    greedy = dataclasses.replace(SAMPLING, greedy=True)
    narrow = dataclasses.replace(SAMPLING, top_k=5, top_p=0.9, repetition_penalty=1.3)
    # More than there are slots, so that some are refilled, and the batch shrinks at the end.
    return [
        CompletionRequest(p, s, 2, (7, i))
        for i, p in enumerate(PROMPTS)
        for s in (SAMPLING, greedy, narrow)
    ]


@pytest.fixture(scope="module")
def expected(requests):
    return _engine(layout()).generate(requests)


def assert_alike(found, expected):
    for group, wanted in zip(found, expected, strict=True):
        for one, other in zip(group, wanted, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


@pytest.mark.samples(gate=("mesh1",))
@pytest.mark.parametrize("mesh", [{"tensor": 2}, {"data": 2, "tensor": 2}, {"tensor": 4}])
def test_completions_are_those_of_one_device(mesh, requests, expected):
    assert_alike(_engine(layout(**mesh)).generate(requests), expected)


@pytest.mark.samples(gate=("tpu-4",))
@pytest.mark.parametrize(("name", "tensor"), [("tpu", 4), ("gpu", 2)])
def test_completions_from_a_cache_in_lines_are_the_same(name, tensor, requests, expected):
    with compiling_for(name):
        found = _engine(layout(tensor=tensor)).generate(requests)
    assert_alike(found, expected)


@pytest.mark.samples(gate=("mesh1",))
@pytest.mark.parametrize("mesh", [{"tensor": 2}, {"data": 2, "tensor": 2}])
def test_extensions_are_those_of_one_device(mesh):
    given, sampling = np.array([4, 1], np.int32), dataclasses.replace(SAMPLING, max_new_tokens=4)

    def turns(on):
        engine = _engine(on)
        held = [CompletionRequest(p, sampling, 2, (7, i), held=True) for i, p in enumerate(PROMPTS)]
        first = [completion for group in engine.generate(held) for completion in group]
        for completion in first[::-1]:
            engine.extend(completion.handle, given[: completion.index + 1], sampling, seed=(8,))
        second = sorted(engine.advance(), key=lambda completion: completion.ticket)
        assert 0 < engine.stats.evictions < len(first)
        return [*first, *second]

    for one, other in zip(turns(layout(**mesh)), turns(layout()), strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def test_each_device_holds_its_rows_and_heads_of_the_cache():
    on = layout(data=2, tensor=2)
    params = jax.device_put(PARAMS, shardings(abstract_params(CONFIG, on)))
    with using(on):
        empty = slots.empty_slots(CONFIG, 8, 16, 4)
        before = empty.cache.keys.sharding
        after, _ = slots.decode_chunk(
            CONFIG,
            params,
            empty,
            live=np.ones(8, bool),
            enough=np.int32(0),
            pauses=np.full(2, -1, np.int32),
            program=slots.ChunkProgram(span=16, chunk_tokens=4),
        )
        rows = jax.device_get(after.rows)
        after = slots.extend(after, np.ones((8, 3), np.int32), np.arange(8, dtype=np.int32), rows)
    shape = after.cache.keys.shape
    L, Z, B, K, H, C = shape
    assert {shard.data.shape for shard in after.cache.keys.addressable_shards} == {
        (L, Z, B // 2, K // 2, H, C)
    }
    # Or the donated cache is copied, and the next call compiles again.
    assert before.devices_indices_map(shape) == after.cache.keys.sharding.devices_indices_map(shape)
