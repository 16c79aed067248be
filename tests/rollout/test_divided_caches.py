"""Devices that share a kv head divide the slots of its cache, and draw what one device draws."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models.paging.paged_cache import PAGE_TOKENS, empty_pages, page_bytes
from rl_sync.models.placement import abstract_params, shardings
from rl_sync.models.platform import compiling_for
from rl_sync.models.sharding import using
from rl_sync.models.slot_shares import shares
from rl_sync.plan.memory.model_memory import cache_bytes
from rl_sync.rollout import slots
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.paging import paged_slots
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from tests.models import tiny
from tests.models.meshes import layout
from tests.rollout.test_engine_programs import compilations

LENGTH = 96
CONFIG = dataclasses.replace(tiny.CONFIG, num_layers=1, vocab_size=12, max_length=LENGTH)
ONE_HEAD = dataclasses.replace(CONFIG, num_kv_heads=1)
WIDE = dataclasses.replace(CONFIG, head_dim=64, query_scale=0.3)
SLIDING = dataclasses.replace(
    tiny.VARIANTS["sliding"], vocab_size=12, max_length=LENGTH, sliding_window=9
)
UNEVEN = dataclasses.replace(CONFIG, num_heads=6)  # 3 query heads cannot be cut in 2.
EINSUM = dataclasses.replace(CONFIG, attention="einsum")
CASES = {
    "2 heads on 4 devices": (CONFIG, {"tensor": 4}, "cpu"),
    "1 head on 4 devices": (ONE_HEAD, {"tensor": 4}, "cpu"),
    "1 head, and data": (ONE_HEAD, {"data": 2, "tensor": 2}, "cpu"),
    "sliding windows": (SLIDING, {"tensor": 4}, "cpu"),
    "uneven query heads": (UNEVEN, {"tensor": 4}, "cpu"),
    "plain attention": (EINSUM, {"tensor": 4}, "cpu"),
    "lines of a GPU": (ONE_HEAD, {"tensor": 4}, "gpu"),
    "lines of a TPU": (WIDE, {"tensor": 4}, "tpu"),
    "sliding windows in lines": (SLIDING, {"tensor": 4}, "gpu"),
    "uneven query heads in lines": (UNEVEN, {"tensor": 4}, "tpu"),
}
cases = pytest.mark.parametrize(("config", "mesh", "platform"), CASES.values(), ids=CASES)


def engine(config, on, seed=0, **options):
    on = on.grouped(config.num_kv_heads)
    made = Engine(config, on, EngineOptions(slots=4, chunk_tokens=4, **options))
    made.load(weights(config, on, seed), version=0)
    return made


def weights(config, on, seed):
    params = tiny.params(config, seed, spread=0.2)
    return jax.device_put(params, shardings(abstract_params(config, on)))


def prompt(tokens):
    return np.random.default_rng(tokens).integers(2, 11, tokens).astype(np.int32)


def turns(made, config):
    """Plays two turns of each sequence; new weights come in the midst of the first.

    Caches are recomputed with the new weights. Some sequences lose their slots between the turns.
    """
    sampling = Sampling(max_new_tokens=10, stop_ids=())
    greedy = dataclasses.replace(sampling, greedy=True)
    long = Sampling(max_new_tokens=32, stop_ids=(), greedy=True)
    requests = [
        CompletionRequest(prompt(tokens), (sampling, greedy)[i % 2], 1, (7, i), held=True)
        for i, tokens in enumerate((40, 5, 33, 30, 1, 28))
    ]
    on, firsts = made._batch.layout, []
    made.submit(requests)
    for version in (1, 2, 3):
        firsts += made.step()
        made.load(weights(config, on, version), version)
    firsts += made.advance()
    firsts.sort(key=lambda one: one.ticket)
    for number, completion in enumerate(firsts):
        made.extend(completion.handle, prompt(number + 2), long, seed=(8, number))
    seconds = sorted(made.advance(), key=lambda one: one.ticket)
    assert made.stats.evictions > 0
    return [*firsts, *seconds]


def assert_alike(found, expected):
    assert len(found) == len(expected) == 12
    for one, other in zip(found, expected, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.versions.tolist() == other.versions.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-5)


@pytest.mark.nightly
@pytest.mark.samples(
    "1 head on 4 devices",
    gate=("sliding windows in lines",),
)
@cases
def test_turns_on_devices_that_divide_the_cache_are_those_of_one_device(config, mesh, platform):
    options = {"cache": "recompute", "kv_offload_bytes": 1 << 20}
    with compiling_for(platform):
        made = engine(config, layout(**mesh), **options)
        assert made._batch.layout.slot_shares > 1
        found = turns(made, config)
        expected = turns(engine(config, layout(), **options), config)
    assert made.stats.restored > 0
    assert_alike(found, expected)


NOT_OFFLOADED = ("1 head on 4 devices", "lines of a GPU")


@pytest.mark.nightly
@pytest.mark.samples(gate=("sliding windows",))
@pytest.mark.parametrize(
    ("config", "mesh", "platform", "kv_offload_bytes"),
    [
        *((*case, 1 << 20) for case in CASES.values()),
        *((*CASES[name], 0) for name in NOT_OFFLOADED),
    ],
    ids=[*CASES, *(f"{name}, not offloaded" for name in NOT_OFFLOADED)],
)
def test_pages_whose_slots_are_divided_give_the_same_turns(
    config, mesh, platform, kv_offload_bytes
):
    pages = LENGTH // PAGE_TOKENS + 1  # Of each share of the rows: too few for all.
    options = {"cache": "recompute", "kv_offload_bytes": kv_offload_bytes}

    def paged(on):
        size = pages * page_bytes(config, on)
        return engine(config, on, cache_bytes=size, **options)

    with compiling_for(platform):
        made = paged(layout(**mesh))
        found = turns(made, config)
        expected = turns(paged(layout(data=mesh.get("data", 1))), config)
    assert made.stats.preemptions > 0
    assert (made.stats.restored > 0) == (kv_offload_bytes > 0)
    assert_alike(found, expected)


@pytest.mark.nightly
@pytest.mark.samples(gate=("4",))
@pytest.mark.parametrize("pages", [None, 4])
def test_what_is_compiled_ahead_is_not_compiled_again(pages):
    on = layout(tensor=4)

    def made(mlp_dim):
        config = dataclasses.replace(CONFIG, mlp_dim=mlp_dim)
        size = pages and pages * page_bytes(config, on)
        options = {"cache": "recompute", "kv_offload_bytes": 1 << 20, "cache_bytes": size}
        return config, engine(config, on, **options)

    config, first = made(28)
    turns(first, config)
    assert {"extend", "insert_copy"} <= {program.name for program in first.programs}
    config, second = made(32)
    programs = second.possible(abstract_params(config, second._batch.layout))
    for program in first.programs:
        programs.lower(program).compile()
    with compilations() as count:
        turns(second, config)
        assert second.programs == first.programs
        assert count() == 0


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_each_device_holds_a_share_of_the_slots_and_a_plan_counts_it(platform):
    one, on = layout(), layout(tensor=4).grouped(1)
    config = dataclasses.replace(ONE_HEAD, head_dim=128)
    with compiling_for(platform):
        with using(on):
            assert shares() == 4
            cache = slots.empty_slots(config, 4, LENGTH, 4).cache
            pool = paged_slots.empty_pool(config, 5)
            assert pool.values is not None, "a kernel reads whole pages"
        held = sum(x.addressable_shards[0].data.nbytes for x in cache)
        # A plan has the mesh of the settings, in which heads are not shared yet.
        assert held == cache_bytes(config, 4, LENGTH, layout(tensor=4))
        assert 4 * held == cache_bytes(config, 4, LENGTH, one)
        of_pages = sum(x.addressable_shards[0].data.nbytes for x in pool[:2])
        assert of_pages == 5 * page_bytes(config, on) == 5 * page_bytes(config, one) // 4


@pytest.mark.nightly
def test_groups_that_do_not_divide_a_page_hold_the_whole_cache():
    wide = dataclasses.replace(CONFIG, num_heads=3, num_kv_heads=1)
    on = layout(tensor=3).grouped(1)
    assert on.mesh.shape["group"] == 3
    assert on.slot_shares == 1
    with using(on):
        for x in jax.jit(empty_pages, static_argnums=(0, 1))(wide, 5)[:2]:
            assert x.sharding.is_fully_replicated
    asked = [CompletionRequest(prompt(40), Sampling(6, stop_ids=(), greedy=True))]
    found, expected = (engine(wide, on).generate(asked) for on in (layout(tensor=3), layout()))
    assert found[0][0].tokens.tolist() == expected[0][0].tokens.tolist()
    assert jnp.isfinite(found[0][0].logprobs).all()
