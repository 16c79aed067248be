"""An engine with a cache in pages draws what an engine with a cache for each slot draws."""

import dataclasses

import jax
import numpy as np
import pytest

from rl_sync.models.config import Experts
from rl_sync.models.paging.paged_cache import PAGE_TOKENS, page_bytes
from rl_sync.models.placement import abstract_params, shardings
from rl_sync.models.platform import compiling_for
from rl_sync.models.sharding import Layout
from rl_sync.rollout import slots
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.engine_programs import Requests
from rl_sync.rollout.paging import paged_slots
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from tests.models import tiny
from tests.models.meshes import layout
from tests.rollout.turns import GREEDY, SAMPLING, decode, play_episodes, whole

LENGTH = 192
WIDTH = LENGTH // PAGE_TOKENS
# The vocabulary divides evenly, so that devices exchange logits.
CONFIG = dataclasses.replace(tiny.CONFIG, num_layers=1, vocab_size=12, max_length=LENGTH)
PARAMS, OTHERS = tiny.params(CONFIG), tiny.params(CONFIG, seed=5)


def engine(pages=None, params=PARAMS, on=None, config=CONFIG, rows=8, **options):
    """Makes an engine with so many pages a device; None for a cache for each slot."""
    on = (on or Layout.single()).grouped(config.num_kv_heads)
    size = None if pages is None else pages * page_bytes(config, on)
    made = Engine(
        config, on, EngineOptions(slots=rows, chunk_tokens=4, cache_bytes=size, **options)
    )
    made.load(jax.device_put(params, shardings(abstract_params(config, on))), version=0)
    return made


def prompt(tokens, seed=0):
    return np.random.default_rng(seed).integers(2, 11, tokens).astype(np.int32)


SIZES = [(40, 60), (5, 90), (70, 30), (33, 80), (64, 50), (65, 100)]


def requests(completions=3, stop_ids=(1,), sizes=SIZES):
    """Groups of prompts around the ends of pages, sampled and greedy, of many lengths."""
    return [
        CompletionRequest(
            prompt(tokens, tokens),
            Sampling(
                new,
                stop_ids=() if i % 3 else stop_ids,
                greedy=bool(i % 2),
                repetition_penalty=1 + i % 3 / 5,
            ),
            completions,
            (5, i),
        )
        for i, (tokens, new) in enumerate(sizes)
    ]


def flat(groups):
    return [completion for group in groups for completion in group]


def assert_equal(found, expected, atol=0.0):
    for one, other in zip(flat(found), flat(expected), strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=0, atol=atol)
        assert one.finish == other.finish


@pytest.fixture(scope="module")
def expected():
    return engine().generate(requests())


@pytest.mark.nightly
def test_with_enough_pages_every_bit_is_that_of_a_cache_for_each_slot(expected):
    made = engine(pages=8 * WIDTH)
    assert_equal(made.generate(requests()), expected)
    stats = made.stats
    assert stats.preemptions == 0
    assert 0 < stats.cache_shared_share < 0.5, "groups share pages of their prompts"
    assert made._batch.pages.used == 0, "nothing is left behind"


@pytest.mark.gate
@pytest.mark.samples("6-0")
@pytest.mark.parametrize(
    ("pages", "kv_offload_bytes"), [(WIDTH, 0), (2 * WIDTH, 0), (WIDTH + 1, 1 << 20)]
)
def test_interrupted_sequences_continue_with_the_same_tokens(pages, kv_offload_bytes, expected):
    made = engine(pages=pages, kv_offload_bytes=kv_offload_bytes)
    # A cache that is computed anew is rounded otherwise.
    assert_equal(made.generate(requests()), expected, atol=0.0 if kv_offload_bytes else 1e-5)
    stats = made.stats
    assert stats.preemptions > 0
    assert stats.set_aside == stats.restored == (stats.preemptions if kv_offload_bytes else 0)
    assert made._batch.pages.used == 0


@pytest.mark.nightly
def test_the_youngest_sequences_are_interrupted():
    made = engine(pages=WIDTH + 2)
    long = Sampling(max_new_tokens=120, stop_ids=(), greedy=True)
    tickets = made.submit([CompletionRequest(prompt(20, i), long, 1, (i,)) for i in range(4)])
    ended = [completion.ticket for completion in made.advance()]
    assert made.stats.preemptions > 0
    assert ended == sorted(tickets), "none overtakes an older one"


@pytest.mark.gate
def test_a_request_waits_until_its_prompt_and_next_chunk_have_pages():
    made = engine(pages=WIDTH)
    short = Sampling(max_new_tokens=8, stop_ids=(), greedy=True)
    made.submit([CompletionRequest(prompt(60, i), short, 1, (i,)) for i in range(6)])
    made.step()
    # Each takes two pages, and leaves one for each other's next chunk.
    assert len(made._occupancy.live) == 2
    assert len(made.advance()) == 6
    assert made.stats.preemptions == 0


@pytest.mark.nightly
def test_turns_of_episodes_draw_what_they_draw_without_pages():
    options = {"decode": decode, "rows": 3}
    config = dataclasses.replace(CONFIG, vocab_size=11, num_layers=2)
    params = tiny.params(config)
    episodes = {"count": 10, "turns": 4}
    one, other = (engine(pages, params, config=config, **options) for pages in (None, WIDTH + 1))
    plain = play_episodes(one, rng=np.random.default_rng(1), **episodes)
    paged = play_episodes(other, rng=np.random.default_rng(1), **episodes)
    in_order = lambda played: sorted(played, key=lambda one: one[0].seed)  # noqa: E731
    for (_, drawn), (_, alike) in zip(in_order(plain), in_order(paged), strict=True):
        assert_equal([[drawn]], [[alike]], atol=5e-5)
    assert other._batch.pages.used == 0


@pytest.mark.gate
def test_held_sequences_lose_their_pages_before_any_is_interrupted():
    made = engine(pages=WIDTH + 2, kv_offload_bytes=1 << 20)
    (first,), (second,) = made.generate(
        [CompletionRequest(prompt(40, i), GREEDY, 1, (i,), held=True) for i in range(2)]
    )
    long = Sampling(max_new_tokens=140, stop_ids=(), greedy=True)
    made.generate([CompletionRequest(prompt(30, 7), long, 1, (3,))])
    assert (made.stats.evictions, made.stats.preemptions) == (1, 0), "the one held longest"
    made.extend(first.handle, prompt(3), GREEDY)
    made.extend(second.handle, prompt(3), GREEDY)
    found = sorted(made.advance(), key=lambda one: one.ticket)
    assert made.stats.restored == 1
    for completion, before, number in zip(found, (first, second), range(2), strict=True):
        tokens = whole(prompt(40, number), before, prompt(3))
        ((alike,),) = engine().generate([CompletionRequest(tokens, GREEDY)])
        assert_equal([[completion]], [[alike]], atol=1e-5)


@pytest.mark.gate
def test_later_requests_begin_with_the_pages_of_a_known_prefix():
    made = engine(pages=4 * WIDTH)
    shared = prompt(100)
    made.generate([CompletionRequest(shared, SAMPLING, 1, (0,))])
    before = made.stats
    longer = np.concatenate([shared[:96], prompt(9, 3)])
    again = [CompletionRequest(tokens, GREEDY, 2, (1,)) for tokens in (shared, longer)]
    found = made.generate(again)
    work = made.stats - before
    assert work.reused_tokens == 2 * 96 * 2
    assert work.prefill_tokens == work.stepped_tokens == 2 * 3 + 2 * 8
    assert_equal(found, engine().generate(again), atol=1e-5)


@pytest.mark.nightly
def test_completions_of_one_request_alone_share_pages_if_others_may_not():
    made = engine(pages=4 * WIDTH, reuses_prefixes=False)
    asked = CompletionRequest(prompt(100), GREEDY, 2, (0,))
    made.generate([asked])
    made.generate([asked])
    assert made.stats.reused_tokens == 0
    assert made.stats.prefill_tokens == 200
    assert made.stats.cache_shared > 0


@pytest.mark.gate
def test_prefixes_that_nobody_uses_make_room():
    made = engine(pages=WIDTH)
    for number in (*range(5), 0):
        made.generate([CompletionRequest(prompt(100, number), GREEDY, 2, (0,))])
    assert made.stats.reused_tokens == 0


@pytest.mark.gate
@pytest.mark.samples("keep")
@pytest.mark.parametrize("cache", ["keep", "recompute"])
def test_prefixes_of_older_weights_are_never_used_again(cache):
    made = engine(pages=8 * WIDTH, cache=cache)
    asked = CompletionRequest(prompt(100), GREEDY, 2, (0,))
    (old,) = made.generate([asked])
    waiting = [dataclasses.replace(asked, completions=9), asked]
    made.submit(waiting)
    made.step()  # Eight are in flight, others wait: their prefix is known.
    made.load(OTHERS, version=1)
    late = [one for one in made.advance() if (one.versions == 1).all()]
    assert len(late) == 3
    (fresh,) = engine(params=OTHERS).generate([asked])
    assert_equal([late], [[fresh[0]] * 3], atol=1e-5)
    assert late[0].tokens.tolist() != old[0].tokens.tolist()
    before = made.stats
    assert_equal(made.generate([asked]), [fresh], atol=1e-5)
    assert (made.stats - before).reused_tokens == 2 * 96, "the newer prefix is used"
    made.load(PARAMS, version=1)  # Even if a version is loaded twice.
    assert_equal(made.generate([asked]), [old], atol=1e-5)


@pytest.mark.gate
@pytest.mark.samples(gate=("recompute",))
@pytest.mark.parametrize("cache", ["keep", "recompute"])
def test_new_weights_in_flight_give_what_they_give_without_pages(cache):
    def swapped(pages):
        made = engine(pages, cache=cache)
        made.submit(requests(completions=2))
        found = []
        for version in range(1, 6):
            found += made.step()
            made.load(OTHERS if version % 2 else PARAMS, version)
        found += made.advance()
        return sorted(found, key=lambda one: one.handle.ticket * 10 + one.index)

    assert_equal([swapped(8 * WIDTH)], [swapped(None)], atol=1e-5)


MESHES = [{"data": 2}, {"tensor": 2}, {"data": 2, "tensor": 2}, {"tensor": 4}, {"data": 4}]


@pytest.mark.nightly
@pytest.mark.samples(gate=("mesh0", "mesh3"))
@pytest.mark.parametrize("mesh", MESHES)
def test_completions_on_a_mesh_are_those_of_one_device(mesh, expected):
    made = engine(pages=2 * WIDTH, on=layout(**mesh))
    assert_equal(made.generate(requests()), expected, atol=2e-5)
    assert len(made._batch.pages.pools) == mesh.get("data", 1)
    pool = made._batch._pool.keys
    # Two devices that share a head have half of its slots each.
    assert pool.addressable_shards[0].data.size * made._batch.layout.mesh.size == pool.size


@pytest.mark.nightly
@pytest.mark.parametrize("kv_offload_bytes", [0, 1_000_000])
@pytest.mark.parametrize("mesh", [{"tensor": 2}, {"data": 2}])
def test_sequences_interrupted_on_a_mesh_continue_with_the_same_tokens(
    mesh, kv_offload_bytes, expected
):
    made = engine(pages=WIDTH, on=layout(**mesh), kv_offload_bytes=kv_offload_bytes)
    assert_equal(made.generate(requests()), expected, atol=2e-5)
    assert made.stats.preemptions > 0
    assert (made.stats.restored > 0) == (kv_offload_bytes > 0)


@pytest.mark.nightly
@pytest.mark.samples(gate=("gpu-8-mesh0",))
@pytest.mark.parametrize("mesh", [{}, {"data": 2, "tensor": 2}])
@pytest.mark.parametrize(("name", "head_dim"), [("tpu", 8), ("tpu", 64), ("gpu", 8)])
def test_completions_from_pages_in_lines_are_those_of_lines(name, head_dim, mesh):
    config = dataclasses.replace(CONFIG, head_dim=head_dim, query_scale=0.3)
    params = tiny.params(config, spread=0.2)
    # Longer prompts are prefilled by kernels, which a CPU does not have.
    asked = requests(2, sizes=[(40, 60), (5, 90), (33, 80), (64, 50)])
    with compiling_for(name):
        found = engine(4 * WIDTH, params, layout(**mesh), config).generate(asked)
        alike = engine(None, params, config=config).generate(asked)
    assert_equal(found, alike, atol=1e-4)


@pytest.mark.nightly
def test_pages_of_plain_attention_give_its_completions(expected):
    config = dataclasses.replace(CONFIG, attention="einsum")
    plain = engine(config=config).generate(requests())
    made = engine(2 * WIDTH, config=config)
    assert_equal(made.generate(requests()), plain, atol=1e-5)


@pytest.mark.gate
def test_nothing_compiles_again_when_weights_and_requests_change():
    programs = (slots.prefill, slots.decode_chunk, slots.rearrange, paged_slots.insert_pages)
    made = engine(pages=8 * WIDTH)
    made.generate(requests(stop_ids=()))
    compiled = [program._cache_size() for program in programs]
    made.load(jax.device_put(OTHERS, Layout.single().repeated), version=1)
    made.generate(requests(stop_ids=()))
    assert [program._cache_size() for program in programs] == compiled


@pytest.mark.nightly
@pytest.mark.parametrize("kv_offload_bytes", [0, 1 << 20])
def test_an_engine_with_pages_needs_no_program_that_is_not_listed(kv_offload_bytes):
    made = engine(pages=WIDTH, kv_offload_bytes=kv_offload_bytes, cache="recompute")
    lengths = frozenset(len(request.prompt) for request in requests())
    asked = Requests(
        lengths, prompts=6, new_tokens=100, offloads_kv=kv_offload_bytes > 0, recomputes=True
    )
    made.submit(requests())
    for version in range(6):
        made.advance(budget_tokens=60)
        made.load(PARAMS, version)
    made.generate([]) if not made.unfinished else made.advance()
    made.generate([CompletionRequest(prompt(70), SAMPLING, 1, (0,))] * 2)
    possible = made.possible(PARAMS)
    listed = possible.listed(asked)
    assert made.programs <= set(listed)
    for program in made.programs:
        possible.lower(program)


@pytest.mark.parametrize(
    ("pages", "rows", "mesh", "message"),
    [
        (
            WIDTH - 1,
            8,
            {},
            r"hold 160 tokens on a device, but a sequence may have 192: use at least",
        ),
        (WIDTH, 7, {"data": 2}, "slots=7 cannot be cut evenly into 2 parts"),
    ],
)
def test_a_cache_that_could_never_serve_is_refused(pages, rows, mesh, message):
    with pytest.raises(ValueError, match=message):
        engine(pages, rows=rows, on=layout(**mesh))


@pytest.mark.nightly
@pytest.mark.parametrize("kv_offload_bytes", [0, 1 << 20])
def test_recorded_experts_are_those_without_pages(kv_offload_bytes):
    config = dataclasses.replace(CONFIG, experts=Experts(8, 2, 12))
    params = tiny.params(config)
    plain, paged = (
        engine(pages, params, config=config, records_routes=True, kv_offload_bytes=offload)
        for pages, offload in ((None, 0), (WIDTH, kv_offload_bytes))
    )
    expected, found = plain.generate(requests()), paged.generate(requests())
    assert paged.stats.preemptions > 0
    assert_equal(found, expected, atol=1e-5)
    for one, other in zip(flat(found), flat(expected), strict=True):
        assert one.routes.first == other.routes.first
        np.testing.assert_array_equal(one.routes.experts, other.routes.experts)


@pytest.mark.parametrize("pages", [None, 2 * WIDTH])
def test_an_engine_at_rest_holds_no_cache_and_then_draws_the_same(pages):
    made, few = engine(pages=pages), requests(2, sizes=SIZES[:2])
    expected = made.generate(few)
    sizes = lambda: sum(x.nbytes for x in jax.tree.leaves((made._batch._slots, made._batch._pool)))  # noqa: E731
    assert sizes() > page_bytes(CONFIG, Layout.single())
    made.rest()
    assert sizes() == 0
    made.rest()
    assert_equal(made.generate(few), expected)
    made.rest()  # With pages of earlier prompts these would be rounded otherwise.
    made.submit(few)
    made.step()
    held = sizes()
    made.rest()
    assert sizes() == held, "sequences in flight need it"
    ended = sorted(made.advance(), key=lambda one: (one.ticket, one.index))
    assert_equal([ended], expected)
