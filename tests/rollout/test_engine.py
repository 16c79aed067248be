import dataclasses

import jax
import numpy as np
import pytest

from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.sharding import Layout
from rl_sync.rollout import buckets, slots
from rl_sync.rollout.engine import Engine, NonFiniteLogitsError
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from tests.models import tiny

EOS = 1
LENGTH = tiny.CONFIG.max_length
PROMPTS = [np.array(ids, np.int32) for ids in ([3, 4, 5, 6], [7, 8], [2, 2, 9], [10], [5] * 6)]
SAMPLING = Sampling(max_new_tokens=8, stop_ids=(EOS,))
PARAMS = tiny.params()
LOGPROBS = jax.jit(token_logprobs, static_argnums=0)


def _engine(params=PARAMS, slots=8, chunk_tokens=4, **options):
    engine = Engine(
        tiny.CONFIG,
        Layout.single(),
        EngineOptions(slots=slots, chunk_tokens=chunk_tokens, **options),
    )
    engine.load(params, version=0)
    return engine


def _requests(sampling=SAMPLING, completions=3, prompts=PROMPTS, seed=0):
    return [CompletionRequest(p, sampling, completions, (seed, i)) for i, p in enumerate(prompts)]


def _flat(results):
    return [completion for completions in results for completion in completions]


def _assert_same(results, others):
    for a, b in zip(_flat(results), _flat(others), strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)
        assert a.finish == b.finish


def _row(request, completion):
    row = np.concatenate([request.prompt, completion.tokens])
    return np.pad(row, (0, LENGTH - len(row)))[None]


def test_greedy_decoding_takes_the_argmax_of_the_full_forward_pass():
    sampling = dataclasses.replace(SAMPLING, greedy=True, stop_ids=())
    requests = _requests(sampling, completions=1)
    for request, (completion,) in zip(requests, _engine().generate(requests), strict=True):
        row = _row(request, completion)
        best = np.argmax(tiny.forward(tiny.CONFIG, PARAMS, row)[0], axis=-1)
        first = len(request.prompt)
        assert completion.tokens.tolist() == best[first - 1 : first + 7].tolist()
        assert np.all(completion.logprobs == 0)
        assert completion.finish == "length"


@pytest.mark.parametrize("greedy", [False, True])
def test_weights_that_are_not_numbers_are_refused_when_they_are_drawn_with(greedy):
    scale = PARAMS["final_norm"]["scale"].at[3].set(np.nan)
    engine = _engine({**PARAMS, "final_norm": {"scale": scale}})
    sampling = dataclasses.replace(SAMPLING, greedy=greedy)
    with pytest.raises(NonFiniteLogitsError, match=r"logits are NaN or infinite: .* in float32"):
        engine.generate(_requests(sampling))


@pytest.mark.gate
def test_values_that_are_too_large_for_float16_name_the_way_out():
    params = {**PARAMS, "final_norm": {"scale": 1e6 * PARAMS["final_norm"]["scale"]}}
    engine = Engine(
        dataclasses.replace(tiny.CONFIG, dtype="float16"), Layout.single(), EngineOptions(slots=2)
    )
    engine.load(params, version=0)
    with pytest.raises(NonFiniteLogitsError, match=r"beyond 65,504: use bfloat16 .*model.dtype"):
        engine.generate(_requests(SAMPLING))


@pytest.mark.samples(gate=("auto-recompute",))
@pytest.mark.parametrize(
    ("attention", "cache"), [("auto", "keep"), ("auto", "recompute"), ("einsum", "keep")]
)
def test_what_is_longer_than_a_page_of_the_cache_is_kept_whole(attention, cache):
    config = dataclasses.replace(tiny.CONFIG, max_length=80, attention=attention)
    params = tiny.params(config)
    engine = Engine(config, Layout.single(), EngineOptions(slots=8, chunk_tokens=4, cache=cache))
    engine.load(params, 0)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 11, length).astype(np.int32) for length in (40, 5, 33)]
    sampling = Sampling(max_new_tokens=40, stop_ids=(), greedy=True)
    # The same weights again and again, for which caches are computed anew, or not.
    requests = [CompletionRequest(prompt, sampling) for prompt in prompts]
    completions = engine.generate(requests, between=lambda _: engine.load(params, 1))
    rows = np.zeros((3, 80), np.int32)
    for row, prompt, (completion,) in zip(rows, prompts, completions, strict=True):
        row[: len(prompt) + 40] = np.concatenate([prompt, completion.tokens])
    best = np.argmax(tiny.forward(config, params, rows), axis=-1)
    for row, prompt, (completion,) in zip(best, prompts, completions, strict=True):
        expected = row[len(prompt) - 1 : len(prompt) + 39]
        assert completion.tokens.tolist() == expected.tolist()


@pytest.mark.gate
@pytest.mark.samples("auto-expected1")
@pytest.mark.parametrize(("attention", "expected"), [("einsum", {80, 160}), ("auto", {160})])
def test_the_cache_is_read_as_far_as_it_is_filled(attention, expected):
    """Rows that outgrow the first span go on as in the full forward pass.

    If attention itself stops after the longest row, one span is enough.
    """
    config = dataclasses.replace(tiny.CONFIG, max_length=160, attention=attention)
    engine = Engine(config, Layout.single(), EngineOptions(slots=8, chunk_tokens=16))
    engine.load(PARAMS, version=0)
    sampling = Sampling(max_new_tokens=110, stop_ids=(), greedy=True)
    (completion,), _ = engine.generate([CompletionRequest(p, sampling) for p in PROMPTS[:2]])
    spans = {p.size[1] for p in engine.programs if p.name == "decode"}
    assert spans == expected
    row = np.concatenate([PROMPTS[0], completion.tokens])[None]
    best = np.argmax(tiny.forward(config, PARAMS, row)[0], axis=-1)
    assert completion.tokens.tolist() == best[3:-1].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_behavior_logprobs_are_those_that_the_trainer_computes(temperature):
    requests = _requests(dataclasses.replace(SAMPLING, temperature=temperature))
    for request, completions in zip(requests, _engine().generate(requests), strict=True):
        for completion in completions:
            row = _row(request, completion)
            logprobs, _ = LOGPROBS(tiny.CONFIG, PARAMS, row, temperature)
            first = len(request.prompt)
            expected = logprobs[0, first : first + len(completion.tokens)]
            np.testing.assert_allclose(completion.logprobs, expected, atol=1e-5)


def test_a_completion_ends_with_its_stop_token_or_at_the_most_tokens():
    finishes = set()
    for completion in _flat(_engine().generate(_requests())):
        assert EOS not in completion.tokens[:-1]
        assert (completion.finish == "stop") == (completion.tokens[-1] == EOS)
        assert len(completion.tokens) == 8 or completion.finish == "stop"
        assert len(completion.tokens) == len(completion.logprobs) == len(completion.versions)
        finishes.add(completion.finish)
    assert finishes == {"stop", "length"}, "the test has not seen both"


def test_a_sampled_padding_id_stays_in_the_completion():
    hot = dataclasses.replace(SAMPLING, temperature=3.0)
    found = _flat(_engine().generate(_requests(hot)))
    assert any(0 in completion.tokens[:-1] for completion in found)
    assert all(np.all(completion.logprobs < 0) for completion in found)


@pytest.mark.samples("no refill", "single steps")
@pytest.mark.parametrize(
    "options",
    [{"slots": 32}, {"slots": 16, "chunk_tokens": 16}, {"chunk_tokens": 1}],
    ids=["no refill", "one chunk", "single steps"],
)
def test_a_completion_depends_on_its_request_alone(options):
    """It depends neither on slots, refilling, shrinking and chunks, nor on its neighbours."""
    requests = _requests()
    together = _engine().generate(requests)
    backwards = _engine(**options).generate(requests[::-1])[::-1]
    _assert_same(backwards, together)
    engine = _engine()
    _assert_same([engine.generate([request])[0] for request in requests], together)


def test_requests_of_other_choices_do_not_disturb_each_other():
    choices = [
        SAMPLING,
        dataclasses.replace(SAMPLING, greedy=True),
        dataclasses.replace(SAMPLING, top_k=3, temperature=2.0),
        dataclasses.replace(SAMPLING, top_p=0.8, min_p=0.05),
        dataclasses.replace(SAMPLING, repetition_penalty=1.5, min_new_tokens=5),
    ]
    requests = [
        dataclasses.replace(request, sampling=sampling)
        for request, sampling in zip(_requests(), choices, strict=True)
    ]
    engine = _engine()
    alone = [engine.generate([request])[0] for request in requests]
    _assert_same(_engine(slots=16).generate(requests), alone)


def test_every_token_is_a_new_draw():
    """If all tokens are about equally likely, a completion does not repeat one of them."""
    flat = dataclasses.replace(SAMPLING, temperature=1e6, stop_ids=())
    for completion in _flat(_engine().generate(_requests(flat))):
        assert len(set(completion.tokens.tolist())) > 2


def test_every_call_draws_anew_unless_the_seed_is_given():
    engine = _engine()
    (request,) = _requests(completions=8, prompts=PROMPTS[:1])
    first, again = ([c.tokens.tolist() for c in engine.generate([request])[0]] for _ in range(2))
    assert first == again
    assert len({tuple(tokens) for tokens in first}) > 4, "a group's completions are the same"
    anew = dataclasses.replace(request, seed=None)
    drawn = [[c.tokens.tolist() for c in engine.generate([anew])[0]] for _ in range(2)]
    assert drawn[0] != drawn[1]


def test_new_weights_choices_and_stop_ids_compile_nothing():
    programs = (slots.prefill, slots.insert, slots.decode_chunk, slots.rearrange)
    engine = _engine()
    before = engine.generate(_requests())
    compiled, counted = [p._cache_size() for p in programs], engine.stats.programs
    engine.load(tiny.params(seed=3), version=1)
    other = dataclasses.replace(SAMPLING, temperature=0.5, top_k=3, repetition_penalty=1.2)
    engine.generate(_requests(other))
    engine.generate(_requests(dataclasses.replace(SAMPLING, greedy=True)))
    engine.load(PARAMS, version=2)
    stopped = engine.generate(_requests(dataclasses.replace(SAMPLING, stop_ids=(5, 4, 9))))
    assert [p._cache_size() for p in programs] == compiled
    assert engine.stats.programs == counted
    assert {c.tokens[-1] for c in _flat(stopped) if c.finish == "stop"} > {4}, "no effect"
    assert any(EOS in c.tokens[:-1] for c in _flat(stopped))
    _assert_same(engine.generate(_requests()), before)


@pytest.mark.gate
def test_more_stop_ids_than_there_was_room_for_take_effect():
    engine = _engine()
    engine.submit(_requests(completions=1))
    finished = engine.step()
    everything = dataclasses.replace(SAMPLING, stop_ids=tuple(range(11)))
    (ticket,) = engine.submit([CompletionRequest(PROMPTS[0], everything, 1)])
    finished = {completion.ticket: completion for completion in finished + engine.advance()}
    assert len(finished) == len(PROMPTS) + 1
    assert len(finished[ticket].tokens) == 1
    assert finished[ticket].finish == "stop"


@pytest.mark.gate
def test_nothing_stops_a_completion_before_its_least_tokens():
    short = dataclasses.replace(SAMPLING, stop_ids=tuple(range(1, 11)), min_new_tokens=4)
    for completion in _flat(_engine().generate(_requests(short))):
        assert completion.tokens[:3].tolist() == [0, 0, 0]
        assert len(completion.tokens) >= 4
        assert np.all(completion.logprobs[:3] == 0), "no other token was possible"


def test_a_group_reads_its_prompt_once():
    engine = _engine()
    engine.generate(_requests(completions=7))
    assert engine.stats.prefill_tokens == sum(map(len, PROMPTS))


def test_stats_tell_what_was_done():
    engine = _engine(slots=16)
    results = engine.generate(_requests())
    stats = engine.stats
    tokens = sum(len(completion.tokens) for completion in _flat(results))
    assert (stats.completions, stats.decode_tokens) == (15, tokens)
    assert stats.row_steps <= 16 * stats.steps
    assert 0 < stats.occupancy <= 1
    assert 0 < stats.cache_use < 1
    assert (stats - stats).occupancy == 0


@pytest.mark.gate
def test_finished_rows_cost_nothing_more():
    """Two long completions among short ones end in the smallest batch, with the tokens as alone."""
    short = CompletionRequest(PROMPTS[0], dataclasses.replace(SAMPLING, max_new_tokens=2), 30, (0,))
    lasting = dataclasses.replace(SAMPLING, max_new_tokens=12, stop_ids=())
    long = CompletionRequest(PROMPTS[1], lasting, 2, (1,))
    engine = _engine(slots=32, chunk_tokens=2)
    _, found = engine.generate([short, long])
    assert engine.stats.row_steps == 2 * 32 + 10 * 8
    _assert_same([found], _engine().generate([long]))


def test_free_slots_are_given_to_those_that_wait():
    lengths = [1, 2, 3, 4, 5, 6, 7, 8] * 4
    requests = [
        CompletionRequest(
            PROMPTS[0], dataclasses.replace(SAMPLING, max_new_tokens=n, stop_ids=()), 1, (n,)
        )
        for n in lengths
    ]
    engine = _engine()
    found = _flat(engine.generate(requests))
    assert [len(completion.tokens) for completion in found] == lengths
    # Without refilling, each 8 would take 8 steps: an occupancy of 36 / 64.
    assert engine.stats.occupancy > 0.75


def test_a_token_budget_leaves_completions_to_go_on_later():
    whole = _engine().generate(_requests())
    engine = _engine()
    engine.submit(_requests())
    finished = engine.advance(budget_tokens=10)
    assert engine.unfinished > 0
    assert 10 <= engine.stats.decode_tokens <= 10 + 8 * 4
    with pytest.raises(ValueError, match="are unfinished, and generate would drop them"):
        engine.generate(_requests())
    finished += engine.advance()
    finished.sort(key=lambda completion: (completion.ticket, completion.index))
    _assert_same([finished], [_flat(whole)])


@pytest.mark.parametrize("cache", ["keep", "recompute"])
def test_sequences_go_on_with_new_weights(cache, monkeypatch):
    monkeypatch.setattr(buckets, "_MOST_PREFILL_TOKENS", 32)  # Of 8 rows, 2 at a time.
    other = tiny.params(seed=5)
    long = dataclasses.replace(SAMPLING, stop_ids=(), greedy=True)
    requests = _requests(long, completions=1)
    engine = _engine(cache=cache)
    engine.submit(requests)
    engine.step()
    engine.load(other, version=1)
    finished = sorted(engine.advance(), key=lambda completion: completion.ticket)
    exact = []
    for request, completion in zip(requests, finished, strict=True):
        assert completion.versions.tolist() == [0] * 4 + [1] * 4
        row, first = _row(request, completion), len(request.prompt)
        for params, here in ((PARAMS, slice(0, 4)), (other, slice(4, 8))):
            best = np.argmax(tiny.forward(tiny.CONFIG, params, row)[0], axis=-1)
            exact.append(np.array_equal(completion.tokens[here], best[first - 1 : first + 7][here]))
    assert all(exact[0::2]), "before the new weights"
    # With the cache of the old weights it is another function than either.
    assert all(exact[1::2]) == (cache == "recompute")


def test_new_weights_are_what_waiting_prompts_are_read_with():
    other = tiny.params(seed=5)
    requests = _requests(completions=8)
    engine = _engine()
    engine.submit(requests)
    early = engine.step()
    engine.load(other, version=1)
    late = [c for c in [*early, *engine.advance()] if np.all(c.versions == 1)]
    expected = _flat(_engine(other).generate(requests))
    assert len(late) == 32
    for completion in late:
        alike = expected[8 * completion.ticket + completion.index]
        np.testing.assert_array_equal(completion.tokens, alike.tokens)


@pytest.mark.parametrize("chunk_tokens", [1, 4])
def test_a_stop_string_ends_a_completion_after_the_token_that_completes_it(chunk_tokens):
    def decode(ids):
        return "".join("abcdefghijk"[i] * (i % 3) for i in ids)

    plain = dataclasses.replace(SAMPLING, stop_ids=())
    cut = dataclasses.replace(plain, stop_strings=("cch", "ee"))
    free = _flat(_engine().generate(_requests(plain)))
    engine = _engine(chunk_tokens=chunk_tokens, decode=decode)
    stopped = 0
    for completion, full in zip(_flat(engine.generate(_requests(cut))), free, strict=True):
        ends = [
            end
            for end in range(1, 9)
            if any(stop in decode(full.tokens[:end]) for stop in cut.stop_strings)
        ]
        np.testing.assert_array_equal(completion.tokens, full.tokens[: ends[0] if ends else 8])
        assert completion.finish == ("stop" if ends else "length")
        stopped += bool(ends)
    assert 0 < stopped < len(free)


@pytest.mark.gate
@pytest.mark.parametrize("stops", [(), ("cch", "ee")])
def test_each_sampled_token_is_finished_in_flight_or_after_a_stop_string(stops):
    engine = _engine(
        slots=4, chunk_tokens=3, decode=lambda ids: "".join("abcdefghijk"[i] * (i % 3) for i in ids)
    )
    engine.submit(_requests(dataclasses.replace(SAMPLING, stop_ids=(), stop_strings=stops)))
    finished = 0
    while engine.unfinished:
        finished += sum(len(one.tokens) for one in engine.step())
        stats = engine.stats
        assert stats.decode_tokens == finished + engine.tokens_in_flight + stats.surplus_tokens
    assert engine.tokens_in_flight == 0
    assert bool(stats.surplus_tokens) is bool(stops)


def _repeated(ids):
    """Decodes token 5, and no other, to a text with `ff`."""
    return "".join("abcdefghijk"[i] * (i % 3) for i in ids)


@pytest.mark.gate
@pytest.mark.parametrize("least", [0, 3])
def test_nothing_is_drawn_in_vain_after_a_token_that_is_known_to_have_a_stop_string(least):
    engine = _engine(chunk_tokens=8, decode=_repeated)
    plain = dataclasses.replace(SAMPLING, stop_ids=(), min_new_tokens=least)
    cut = dataclasses.replace(plain, stop_strings=("ff",))
    drawn = []
    for _ in range(2):
        before = engine.stats.decode_tokens
        completions = _flat(engine.generate(_requests(cut)))
        kept = sum(len(completion.tokens) for completion in completions)
        drawn.append((engine.stats.decode_tokens - before) / kept)
        assert all(len(completion.tokens) >= least for completion in completions)
    assert drawn[0] > drawn[1]
    assert least or drawn[1] == 1.0
    assert {completion.finish for completion in completions} == {"stop", "length"}
    # Requests without that stop string draw on.
    alike, fresh = (
        engine.generate(_requests(plain)),
        _engine(chunk_tokens=8).generate(_requests(plain)),
    )
    for one, other in zip(_flat(alike), _flat(fresh), strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
    assert any(5 in completion.tokens[:-1] for completion in _flat(alike))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            CompletionRequest(PROMPTS[0], Sampling(20, ())),
            "need rows of 24, but the engine's have 16",
        ),
        (CompletionRequest(np.array([11]), SAMPLING), "the model knows 0 to 10"),
        (CompletionRequest(PROMPTS[0], Sampling(2, (11,))), "stop id 11 could never be sampled"),
        (CompletionRequest(PROMPTS[0], Sampling(2, (), ("x",))), "make the engine with decode"),
    ],
)
def test_what_cannot_be_served_is_refused(request_, message):
    engine = _engine()
    with pytest.raises(ValueError, match=message):
        engine.submit([*_requests(), request_])
    assert engine.unfinished == 0


def test_without_weights_there_is_nothing_to_generate_with():
    with pytest.raises(ValueError, match=r"call load\(params, version\) first"):
        Engine(tiny.CONFIG, Layout.single()).step()
