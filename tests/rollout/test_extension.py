"""Held completions go on after given tokens, as a request with all tokens so far would."""

import dataclasses

import numpy as np
import pytest

from rl_sync.rollout import slots
from rl_sync.rollout.request import CompletionRequest, Handle
from rl_sync.rollout.sampling import Sampling
from tests.models import tiny
from tests.rollout.turns import (
    CHOICES,
    CONFIG,
    EOS,
    GIVEN,
    GREEDY,
    LENGTH,
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

pytestmark = pytest.mark.gate


@pytest.mark.nightly
@pytest.mark.samples("evictions")
@pytest.mark.samples(gate=("refill", "evictions"))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunk_tokens": 1, "stepped_tokens": 3},
        {"chunk_tokens": 16, "slots": 16},
        {"slots": 3},
        {"stepped_tokens": 0},
        {"cache": "recompute", "slots": 32},
    ],
    ids=["refill", "single steps", "one chunk", "evictions", "prefills", "no refill"],
)
def test_an_extension_draws_what_a_request_with_all_tokens_so_far_would(options):
    engine = make_engine(decode=decode, **options)
    played = play_episodes(engine, count=12, turns=5, rng=np.random.default_rng(1))
    assert len(played) == 60
    assert engine.held == ()
    assert (engine.unfinished, engine.stats.completions) == (0, 60)
    roomy = make_engine(decode=decode, slots=64)
    expected = roomy.generate([dataclasses.replace(r, held=False) for r, _ in played])
    for (_, completion), (other,) in zip(played, expected, strict=True):
        assert_same(completion, other, atol=5e-5)
        assert len(completion.versions) == len(completion.tokens)
    assert engine.stats.reused_tokens > 0
    assert (engine.stats.evictions > 0) == (options.get("slots", 8) < 12)


@pytest.mark.nightly
@pytest.mark.samples("sliding", gate=("einsum",))
@pytest.mark.parametrize(
    "config",
    [
        *(dataclasses.replace(tiny.VARIANTS[n], max_length=LENGTH) for n in ("sliding", "experts")),
        dataclasses.replace(CONFIG, attention="einsum", max_length=160),
    ],
    ids=["sliding", "experts", "einsum"],
)
def test_models_of_other_kinds_are_extended_alike(config):
    params = tiny.params(config)
    engine = make_engine(config, params, decode=decode)
    played = play_episodes(engine, count=6, turns=7, rng=np.random.default_rng(2))
    assert max(len(request.prompt) for request, _ in played) > 64, "no second page, no second span"
    expected = make_engine(config, params, decode=decode).generate(
        [dataclasses.replace(r, held=False) for r, _ in played]
    )
    for (_, completion), (other,) in zip(played, expected, strict=True):
        assert_same(completion, other, atol=5e-5)


def test_given_tokens_are_read_by_decode_steps_while_others_draw():
    engine = make_engine()
    lasting = dataclasses.replace(GREEDY, max_new_tokens=40)
    engine.submit([held_request(), CompletionRequest(PROMPT[:2], lasting, 1, (1,))])
    (first,) = [*engine.step(), *engine.step()]
    before = engine.stats
    engine.extend(first.handle, GIVEN, GREEDY, seed=(0, 1))
    finished = [completion for _ in range(4) for completion in engine.step()]
    work = engine.stats - before
    assert [len(completion.tokens) for completion in finished] == [8]
    assert_same(finished[0], fresh(whole(PROMPT, first, GIVEN), GREEDY, (0, 1)))
    # 5 steps read what is given, 8 draw; the other row draws in all of the chunks' 16.
    assert (work.steps, work.decode_tokens) == (16, 16 + 8)
    assert (work.prefill_tokens, work.stepped_tokens) == (5, 5)
    assert work.reused_tokens == len(PROMPT) + 8 - 1, "the last drawn token has no cache yet"
    assert work.prefill_tokens_per_sec == 0, "no prefill"
    (other,) = engine.advance()
    assert_same(other, fresh(PROMPT[:2], lasting, (1,)))


@pytest.mark.parametrize(("stepped_tokens", "prefilled"), [(5, 5), (4, 4 + 8 + 5)])
def test_more_tokens_than_decode_steps_read_are_prefilled_with_all_before(
    stepped_tokens, prefilled
):
    engine = make_engine(stepped_tokens=stepped_tokens)
    ((first,),) = engine.generate([held_request()])
    before = engine.stats
    engine.extend(first.handle, GIVEN, GREEDY, seed=(0, 1))
    (second,) = engine.advance()
    assert_same(second, fresh(whole(PROMPT, first, GIVEN), GREEDY, (0, 1)))
    assert (engine.stats - before).prefill_tokens == prefilled


def test_a_completion_at_its_limit_goes_on_without_any_given_tokens():
    engine = make_engine()
    ((first,),) = engine.generate([held_request()])
    engine.extend(first.handle, GIVEN[:0], GREEDY)
    (second,) = engine.advance()
    twice = dataclasses.replace(GREEDY, max_new_tokens=16)
    np.testing.assert_array_equal(whole(first, second), fresh(PROMPT, twice, (0,)).tokens)


def test_given_tokens_do_not_stop_a_row_even_if_drawn_ones_would():
    """Neither a stop id, nor a token that is known to have a stop string, ends a given turn."""
    sampling = Sampling(8, (EOS,), stop_strings=("ff",))
    engine = make_engine(decode=decode)
    finished = engine.generate(
        [CompletionRequest(np.array([i], np.int32), sampling, 8, (i,)) for i in range(2, 11)]
    )
    ended = {c.tokens[-1] for group in finished for c in group if c.finish == "stop"}
    assert {5, EOS} <= ended, "the engine has not seen that token 5 has a stop string"
    ((first,),) = engine.generate([held_request()])
    given = np.array([5, EOS, 5, EOS, 5], np.int32)
    engine.extend(first.handle, given, sampling, seed=(3,))
    (second,) = engine.advance()
    assert_same(second, fresh(whole(PROMPT, first, given), sampling, (3,), decode=decode))


def test_each_completion_of_a_group_is_held_by_itself():
    engine = make_engine()
    (group,) = engine.generate([held_request(SAMPLING, completions=3)])
    assert set(engine.held) == {Handle(0, 0), Handle(0, 1), Handle(0, 2)}
    engine.release(group[1].handle)
    tickets = {
        index: engine.extend(group[index].handle, GIVEN[index:], SAMPLING, seed=(7, index))
        for index in (2, 0)
    }
    assert (engine.held, engine.unfinished) == ((), 2)
    found = {completion.ticket: completion for completion in engine.advance()}
    for index, ticket in tickets.items():
        assert found[ticket].index == 0
        everything = whole(PROMPT, group[index], GIVEN[index:])
        assert_same(found[ticket], fresh(everything, SAMPLING, (7, index)))


def test_extensions_without_a_seed_draw_anew():
    flat = dataclasses.replace(SAMPLING, temperature=1e6, stop_ids=())
    engine = make_engine()
    (group,) = engine.generate([held_request(completions=2)])
    for completion in group:
        engine.extend(completion.handle, GIVEN, flat)
    one, other = engine.advance()
    assert one.tokens.tolist() != other.tokens.tolist()


def test_what_waits_gets_the_slots_of_those_held_longest():
    engine = make_engine(slots=8)
    early = [c for (c,) in engine.generate([held_request(seed=(i,)) for i in range(3)])]
    late = [c for (c,) in engine.generate([held_request(seed=(3 + i,)) for i in range(5)])]
    engine.generate([CompletionRequest(PROMPT, GREEDY, 3)])
    assert engine.stats.evictions == 3
    assert len(engine.held) == 8, "what is evicted is still held"
    for group, prefilled, reused in ((early, 4 + 8 + 5, 0), (late, 5, 4 + 8 - 1)):
        before = engine.stats
        wholes = {}
        for completion in group:
            ticket = engine.extend(completion.handle, GIVEN, SAMPLING, seed=(9,))
            wholes[ticket] = whole(PROMPT, completion, GIVEN)
        for completion in engine.advance():
            assert_same(completion, fresh(wholes[completion.ticket], SAMPLING, (9,)))
        work = engine.stats - before
        assert work.prefill_tokens == len(group) * prefilled
        assert work.reused_tokens == len(group) * reused


def test_an_evicted_episode_goes_on_before_requests_that_wait():
    engine = make_engine(slots=1)
    held = [completions[0] for completions in engine.generate([held_request() for _ in range(3)])]
    for _ in range(2):
        waiting = engine.submit([CompletionRequest(PROMPT, GREEDY, 2)] * 2)
        extended = [
            engine.extend(completion.handle, GIVEN, GREEDY, held=True) for completion in held[:2]
        ]
        finished = engine.advance()
        expected = [*extended, *np.repeat(waiting, 2)]
        assert [completion.ticket for completion in finished] == expected
        held = finished[:2]


def test_a_released_slot_is_free():
    engine = make_engine(slots=2)
    (group,) = engine.generate([held_request(completions=2)])
    for completion in group:
        engine.release(completion.handle)
    engine.generate([CompletionRequest(PROMPT, GREEDY, 2)])
    assert (engine.held, engine.stats.evictions) == ((), 0)


def test_held_sequences_keep_a_batch_large_only_for_some_chunks():
    """12 sequences are parked while 2 go on: at first in their slots, then they are evicted."""
    engine = make_engine(slots=16)
    lasting = dataclasses.replace(GREEDY, max_new_tokens=80)
    engine.submit([CompletionRequest(PROMPT, lasting, 2, (0,)), held_request(completions=12)])
    rows = []
    while engine.unfinished:
        before = engine.stats
        engine.step()
        work = engine.stats - before
        rows.append(work.row_steps // work.steps)
    assert rows == [16] * (2 + 8) + [8] * 10
    assert engine.stats.evictions == 12 - (8 - 2)
    expected = fresh(whole(PROMPT, fresh(PROMPT, GREEDY, (0,)), GIVEN), GREEDY, (0,))
    for handles, reused in ((engine.held[6:], 4 + 8 - 1), (engine.held[:6], 0)):
        before = engine.stats
        for handle in handles:
            engine.extend(handle, GIVEN, GREEDY)
        for completion in engine.advance():
            assert_same(completion, expected)
        assert (engine.stats - before).reused_tokens == 6 * reused, "the last ones have their slots"


def test_tokens_to_read_count_as_steps_to_come_when_a_batch_may_shrink():
    engine = make_engine(slots=16)
    (group,) = engine.generate([held_request(completions=16)])
    for completion in group[1:]:
        engine.release(completion.handle)
    before = engine.stats
    short = dataclasses.replace(GREEDY, max_new_tokens=2)
    engine.extend(group[0].handle, np.tile(GIVEN, 8), short)
    engine.advance()
    assert (engine.stats - before).row_steps == (8 * 5 + 2) * 8


def test_a_batch_grows_around_held_sequences():
    engine = make_engine(slots=32)
    (group,) = engine.generate([held_request(SAMPLING, completions=7)])
    engine.generate([CompletionRequest(PROMPT, GREEDY, 9)])
    before = engine.stats
    wholes = {}
    for completion in group:
        ticket = engine.extend(completion.handle, GIVEN, SAMPLING, seed=(4,))
        wholes[ticket] = whole(PROMPT, completion, GIVEN)
    for completion in engine.advance():
        assert_same(completion, fresh(wholes[completion.ticket], SAMPLING, (4,)))
    work = engine.stats - before
    assert (work.evictions, work.prefill_tokens) == (0, 7 * 5)


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("cache", ["keep", "recompute"])
def test_new_weights_find_parked_caches_like_those_in_flight(cache, busy):
    """Recomputed, they are as if the new weights had read all. Kept, they are as they were.

    Others that decode with the new weights meanwhile change nothing.
    """
    engine = make_engine(cache=cache)
    ((first,),) = engine.generate([held_request()])
    engine.load(OTHERS, version=1)
    if busy:
        engine.generate([CompletionRequest(PROMPT[1:], GREEDY, 2)])
    flat = dataclasses.replace(SAMPLING, stop_ids=())
    engine.extend(first.handle, GIVEN, flat, seed=(2,))
    (second,) = engine.advance()
    assert second.versions.tolist() == [1] * 8
    anew = fresh(whole(PROMPT, first, GIVEN), flat, (2,), params=OTHERS)
    if cache == "recompute":
        assert_same(second, anew)
        return
    assert not np.allclose(second.logprobs, anew.logprobs, atol=1e-3)
    # The same in flight: a row that new weights find when it has drawn what was drawn before.
    engine = make_engine()
    ((again,),) = engine.generate([held_request()])
    engine.extend(again.handle, GIVEN, flat, seed=(2,))
    engine.load(OTHERS, version=1)
    (in_flight,) = engine.advance()
    assert_same(second, in_flight)


def test_new_weights_are_what_evicted_sequences_are_read_with():
    engine = make_engine(slots=1)
    ((first,),) = engine.generate([held_request()])
    engine.generate([CompletionRequest(PROMPT, GREEDY)])
    engine.load(OTHERS, version=1)
    engine.extend(first.handle, GIVEN, SAMPLING, seed=(2,))
    (second,) = engine.advance()
    assert_same(second, fresh(whole(PROMPT, first, GIVEN), SAMPLING, (2,), params=OTHERS))


def test_room_for_more_stop_ids_is_made_for_extensions_too():
    engine = make_engine()
    ((first,),) = engine.generate([held_request()])
    everything = dataclasses.replace(SAMPLING, stop_ids=tuple(range(11)))
    engine.extend(first.handle, GIVEN, everything)
    (second,) = engine.advance()
    assert (len(second.tokens), second.finish) == (1, "stop")


def test_extensions_compile_one_program_for_all_lengths_and_choices():
    engine = make_engine()
    (group,) = engine.generate([held_request(completions=5)])
    names = {program.name for program in engine.programs}
    assert names == {"empty_slots", "prefill", "insert", "decode"}
    before = slots.extend._cache_size()
    programs = engine.programs
    for number, completion in enumerate(group):
        engine.extend(completion.handle, GIVEN[:number], CHOICES[number % 3])
        engine.advance()
    assert {(p.name, p.size) for p in engine.programs - programs} == {("extend", (8, 64, 4))}
    assert slots.extend._cache_size() <= before + 1


@pytest.mark.parametrize(
    ("given", "sampling", "message"),
    [
        (GIVEN, Sampling(90, ()), "need rows of 107, but the engine's have 96"),
        (np.array([11], np.int32), GREEDY, "the model knows 0 to 10"),
        (GIVEN, Sampling(2, (), ("x",)), "make the engine with decode"),
    ],
)
def test_an_extension_that_cannot_be_served_leaves_the_completion_held(given, sampling, message):
    engine = make_engine()
    ((first,),) = engine.generate([held_request()])
    with pytest.raises(ValueError, match=message):
        engine.extend(first.handle, given, sampling)
    assert (engine.held, engine.unfinished) == ((first.handle,), 0)
    engine.extend(first.handle, GIVEN, GREEDY, seed=(1,))
    (second,) = engine.advance()
    assert_same(second, fresh(whole(PROMPT, first, GIVEN), GREEDY, (1,)))


def test_only_what_is_held_can_be_extended_or_released():
    engine = make_engine()
    ((free,), (held,)) = engine.generate([CompletionRequest(PROMPT, GREEDY), held_request()])
    engine.extend(held.handle, GIVEN, GREEDY)
    for completion in (free, held):
        refused = rf"holds no completion 0 of ticket {completion.ticket}: .* held=True, or it is"
        with pytest.raises(ValueError, match=refused):
            engine.extend(completion.handle, GIVEN, GREEDY)
        with pytest.raises(ValueError, match=refused):
            engine.release(completion.handle)


def test_a_negative_number_of_stepped_tokens_is_refused():
    with pytest.raises(ValueError, match="stepped_tokens=-1 must be at least 0"):
        make_engine(stepped_tokens=-1)
