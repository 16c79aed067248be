"""Caches of evicted episodes that are set aside give what caches in slots and prefills give."""

import dataclasses

import jax
import numpy as np
import pytest

from rl_sync.models.placement import abstract_params, shardings
from rl_sync.models.sharding import using
from rl_sync.rollout import slots
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from tests.models import tiny
from tests.models.meshes import layout
from tests.rollout.turns import (
    CONFIG,
    GIVEN,
    GREEDY,
    OTHERS,
    PROMPT,
    SAMPLING,
    assert_same,
    decode,
    fresh,
    held_request,
    make_engine,
    play_episodes,
    whole,
)

pytestmark = pytest.mark.nightly

ROOMY = 1 << 20
FLAT = dataclasses.replace(SAMPLING, stop_ids=())
# Keys and values in float32 of 2 layers with 2 heads of 4, for 16 positions.
ROW_BYTES = 16 * 2 * 2 * 2 * 4 * 4


def evicted(engine, count=1, prompt=PROMPT):
    """Returns completions of 8 tokens that are held, and whose slots went to others."""
    requests = [held_request(seed=(i,), prompt=prompt) for i in range(count)]
    found = [completion for (completion,) in engine.generate(requests)]
    engine.generate([CompletionRequest(PROMPT, GREEDY)] * engine.slots)
    assert engine.stats.evictions == count
    return found


def counts(stats):
    return stats.set_aside, stats.restored, stats.dropped


@pytest.mark.samples("drops")
@pytest.mark.parametrize(
    ("kv_offload_bytes", "options"),
    [(ROOMY, {}), (4 * ROW_BYTES, {"chunk_tokens": 1, "stepped_tokens": 3})],
    ids=["roomy", "drops"],
)
def test_restored_caches_draw_what_a_request_with_all_tokens_so_far_would(
    kv_offload_bytes, options
):
    engine = make_engine(decode=decode, slots=3, kv_offload_bytes=kv_offload_bytes, **options)
    played = play_episodes(engine, count=12, turns=5, rng=np.random.default_rng(1))
    expected = make_engine(decode=decode, slots=64).generate(
        [dataclasses.replace(request, held=False) for request, _ in played]
    )
    for (_, completion), (other,) in zip(played, expected, strict=True):
        assert_same(completion, other, atol=5e-5)
    stats = engine.stats
    assert stats.set_aside <= stats.evictions
    assert 0 < stats.restored < stats.set_aside, "of the last turns nothing is restored"
    assert (stats.dropped > 0) == (kv_offload_bytes < ROOMY)
    assert engine._aside.held_bytes == 0, "nothing is left behind"


@pytest.mark.nightly
def test_caches_of_one_page_of_all_positions_are_restored_alike():
    config = dataclasses.replace(CONFIG, num_layers=1, attention="einsum", max_length=100)
    options = {"config": config, "params": tiny.params(config)}
    engine = make_engine(slots=1, kv_offload_bytes=ROOMY, **options)
    long = np.tile(PROMPT, 15)
    (first,) = evicted(engine, prompt=long)
    engine.extend(first.handle, GIVEN, FLAT, seed=(2,))
    (second,) = engine.advance()
    assert engine.stats.restored == 1
    assert_same(second, fresh(whole(long, first, GIVEN), FLAT, (2,), **options))


@pytest.mark.nightly
@pytest.mark.parametrize("mesh", [{"data": 2}, {"data": 2, "tensor": 2}])
def test_caches_of_sharded_slots_are_restored_alike(mesh):
    config = dataclasses.replace(CONFIG, num_layers=1)
    params = tiny.params(config)

    def turns(on, kv_offload_bytes):
        engine = Engine(
            config, on, EngineOptions(slots=2, chunk_tokens=4, kv_offload_bytes=kv_offload_bytes)
        )
        engine.load(jax.device_put(params, shardings(abstract_params(config, on))), version=0)
        requests = [held_request(FLAT if i % 2 else GREEDY, (i,)) for i in range(6)]
        first = [completion for (completion,) in engine.generate(requests)]
        for number, completion in enumerate(first):
            engine.extend(completion.handle, GIVEN[:number], FLAT, seed=(8, number))
        second = sorted(engine.advance(), key=lambda completion: completion.ticket)
        return [*first, *second], engine.stats

    recomputed, _ = turns(layout(), 0)
    restored, stats = turns(layout(**mesh), ROOMY)
    assert counts(stats) == (4, 4, 0)
    for one, other in zip(restored, recomputed, strict=True):
        assert_same(one, other)


def test_a_copy_is_made_without_gathering_the_cache():
    """Each device looks in its own rows; only the row that is wanted travels."""
    on = layout(data=2)
    with using(on):
        empty = slots.empty_slots(CONFIG, 8, 96, 4)
        source = np.array([5], np.int32)
        text = slots.copy_cache.lower(empty, source, span=32).compile().as_text()
    assert "all-reduce" in text
    assert "all-gather" not in text


def test_what_is_restored_reads_the_given_tokens_alone():
    engine = make_engine(slots=2, kv_offload_bytes=ROOMY)
    firsts = evicted(engine, 2)
    assert counts(engine.stats) == (2, 0, 0)
    assert engine._aside.held_bytes == 2 * ROW_BYTES
    before = engine.stats
    wholes = {}
    for number, first in enumerate(firsts):
        given = GIVEN[: 5 * number]
        ticket = engine.extend(first.handle, given, FLAT, seed=(9,))
        wholes[ticket] = whole(PROMPT, first, given)
    for completion in engine.advance():
        assert_same(completion, fresh(wholes[completion.ticket], FLAT, (9,)))
    work = engine.stats - before
    assert counts(work) == (0, 2, 0)
    assert (work.prefill_tokens, work.stepped_tokens) == (5, 5)
    assert work.reused_tokens == 2 * (4 + 8 - 1), "the last drawn token has no cache yet"
    assert engine._aside.held_bytes == 0


def test_beyond_the_bound_what_was_used_longest_ago_is_dropped():
    engine = make_engine(slots=3, kv_offload_bytes=2 * ROW_BYTES + 100)
    firsts = evicted(engine, 3)
    assert counts(engine.stats) == (3, 0, 1)
    before = engine.stats
    for first in firsts:
        engine.extend(first.handle, GIVEN, GREEDY, seed=(9,))
    for completion, first in zip(engine.advance(), firsts, strict=True):
        assert_same(completion, fresh(whole(PROMPT, first, GIVEN), GREEDY, (9,)))
    work = engine.stats - before
    assert (work.restored, work.dropped) == (2, 0)
    assert work.prefill_tokens == (4 + 8 + 5) + 2 * 5, "the first one is read again"


def test_a_cache_that_is_about_to_be_restored_is_not_the_first_to_be_dropped():
    engine = make_engine(slots=1, kv_offload_bytes=2 * ROW_BYTES)
    firsts = [completion for (completion,) in engine.generate([held_request()] * 3)]
    assert counts(engine.stats) == (2, 0, 0), "the third has the slot"
    before = engine.stats
    engine.extend(firsts[0].handle, GIVEN, GREEDY)  # Its cache is the oldest, and takes the slot.
    engine.advance()
    work = engine.stats - before
    assert (work.restored, work.dropped, work.prefill_tokens) == (1, 1, 5)
    engine.extend(firsts[1].handle, GIVEN, GREEDY)
    engine.advance()
    assert (engine.stats - before).prefill_tokens == 5 + (4 + 8 + 5), "so this one's was dropped"


def test_a_cache_larger_than_the_bound_drops_no_others():
    engine = make_engine(slots=1, kv_offload_bytes=ROW_BYTES)
    long = held_request(prompt=np.tile(PROMPT, 6))
    (_,), (larger,) = engine.generate([held_request(), long])
    engine.generate([CompletionRequest(PROMPT, GREEDY)])
    assert (engine.stats.evictions, *counts(engine.stats)) == (2, 1, 0, 0)
    engine.extend(larger.handle, GIVEN, GREEDY)
    engine.advance()
    assert engine.stats.restored == 0


def test_without_a_bound_nothing_is_set_aside():
    engine = make_engine(slots=1)
    evicted(engine)
    assert counts(engine.stats) == (0, 0, 0)
    assert "copy_cache" not in {program.name for program in engine.programs}


@pytest.mark.parametrize("given", [None, np.tile(GIVEN, 2)], ids=["released", "too long"])
def test_caches_that_nobody_needs_any_more_are_freed(given):
    engine = make_engine(slots=1, kv_offload_bytes=ROOMY, stepped_tokens=9)
    (first,) = evicted(engine)
    assert engine._aside.held_bytes == ROW_BYTES
    if given is None:
        engine.release(first.handle)
    else:
        engine.extend(first.handle, given, GREEDY, seed=(3,))
        (second,) = engine.advance()
        assert_same(second, fresh(whole(PROMPT, first, given), GREEDY, (3,)))
    assert engine._aside.held_bytes == 0
    assert counts(engine.stats) == (1, 0, 0)


@pytest.mark.parametrize("waits", [False, True], ids=["held", "waits for a slot"])
@pytest.mark.parametrize("cache", ["keep", "recompute"])
def test_new_weights_find_caches_set_aside_like_those_in_slots(cache, waits):
    def second_of(slots, kv_offload_bytes):
        engine = make_engine(slots=slots, cache=cache, kv_offload_bytes=kv_offload_bytes)
        ((first,),) = engine.generate([held_request()])
        engine.generate([CompletionRequest(PROMPT, GREEDY)])
        if not waits:
            engine.load(OTHERS, version=1)
        engine.extend(first.handle, GIVEN, FLAT, seed=(2,))
        if waits:
            engine.load(OTHERS, version=1)
        (second,) = engine.advance()
        assert second.versions.tolist() == [1] * 8
        return first, second, engine.stats

    first, aside, stats = second_of(slots=1, kv_offload_bytes=ROOMY)
    anew = fresh(whole(PROMPT, first, GIVEN), FLAT, (2,), params=OTHERS)
    if cache == "recompute":
        assert counts(stats) == (1, 0, 1)
        assert_same(aside, anew)
    else:
        assert counts(stats) == (1, 1, 0)
        _, parked, stats = second_of(slots=8, kv_offload_bytes=0)
        assert stats.evictions == 0
        assert_same(aside, parked)
        assert not np.allclose(aside.logprobs, anew.logprobs, atol=1e-3)


def test_copies_compile_one_program_for_each_size_of_batch_and_prompt():
    engine = make_engine(slots=1, kv_offload_bytes=ROOMY)
    programs = slots.copy_cache._cache_size(), slots.insert._cache_size()
    held = [completion for (completion,) in engine.generate([held_request()] * 4)]
    for given in (GIVEN, GIVEN[:3], GIVEN[:2], GIVEN):
        tickets = [engine.extend(one.handle, given, GREEDY, held=True) for one in held]
        held = sorted(engine.advance(), key=lambda one: tickets.index(one.ticket))
    named = {(p.name, p.size) for p in engine.programs if "copy" in p.name}
    sizes = (16, 32, 64)
    assert engine.stats.restored == 4 * 3, "one of the four has the slot"
    assert named == {("copy_cache", (1, size, 4)) for size in sizes} | {
        ("insert_copy", (1, 1, size, 4)) for size in sizes
    }
    # Beside them there is the insert of the first prompts.
    assert slots.copy_cache._cache_size() - programs[0] <= 3
    assert slots.insert._cache_size() - programs[1] <= 3 + 1


def test_a_negative_bound_is_refused():
    with pytest.raises(ValueError, match="kv_offload_bytes=-1 must be at least 0"):
        make_engine(kv_offload_bytes=-1)
