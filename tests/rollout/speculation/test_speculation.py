"""Completions with drafts are those without: tokens, log-probabilities, versions and ends."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models.config import Experts
from rl_sync.models.paging.paged_cache import page_bytes
from rl_sync.models.sharding import Layout
from rl_sync.rollout import slots
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest, Handle
from rl_sync.rollout.sampling import LogitsProcessors, Sampling
from rl_sync.rollout.speculation.drafts import Drafts, verified
from rl_sync.sampling_masks import no_entries
from rl_sync.token_records import SamplerShape
from rl_sync.types import CompletionProgress
from tests.models import tiny
from tests.rollout import test_images_in_prompts, turns

pytestmark = pytest.mark.gate

CONFIG = dataclasses.replace(tiny.CONFIG, max_length=64)
EXPERTS = dataclasses.replace(CONFIG, experts=Experts(8, 2, 12))
LONG = Sampling(max_new_tokens=30, stop_ids=())
ALPHABET = "abcdefghijk"
DONE = CompletionProgress(*(np.zeros(0, np.int32),) * 3, no_entries(), "stop")
"""Stands for a completion that is not to be generated again."""


def text(ids):
    return "".join(ALPHABET[i] for i in ids)


def make_engine(speculation="always", config=CONFIG, seed=0, **options):
    options = {"slots": 8, "chunk_tokens": 8, "draft_tokens": 3, "decode": text, **options}
    made = Engine(
        config, Layout.single(), EngineOptions(seed=seed, speculation=speculation, **options)
    )
    # Narrow enough that tokens repeat, and wide enough that drafts fail, too.
    made.load(tiny.params(config, spread=0.5), 0)
    return made


def requests(sampling=LONG, completions=4, held=False):
    prompts = [np.array(ids, np.int32) for ids in ([2, 3, 4, 2, 3], [5], [6, 7, 6, 7, 6, 7, 6])]
    return [
        CompletionRequest(prompt, sampling, completions, (3, i), held)
        for i, prompt in enumerate(prompts)
    ]


def assert_same(found, expected, atol=3e-5):
    """Compares completions, in the order of tickets and indices."""
    assert len(found) == len(expected) > 0
    both = (sorted(of, key=lambda one: (one.ticket, one.index)) for of in (found, expected))
    for one, other in zip(*both, strict=True):
        assert (one.ticket, one.index, one.finish) == (other.ticket, other.index, other.finish)
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.versions, other.versions)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=atol)
        np.testing.assert_array_equal(one.masks, other.masks)
        if one.routes is not None or other.routes is not None:
            assert one.routes.first == other.routes.first
            np.testing.assert_array_equal(one.routes.experts, other.routes.experts)
        if one.sampler is not None or other.sampler is not None:
            for values, others in zip(one.sampler, other.sampler, strict=True):
                np.testing.assert_allclose(values, others, atol=1e-4)


def completed(engine, asked):
    return [one for group in engine.generate(asked) for one in group]


MASKS = LogitsProcessors(True, True, True, masks=True)
KINDS = {
    "plain": (LONG, {}),
    "greedy": (dataclasses.replace(LONG, greedy=True), {}),
    "top_k": (dataclasses.replace(LONG, top_k=3), {}),
    "top_p, hot": (dataclasses.replace(LONG, top_p=0.7, temperature=1.5), {}),
    "min_p, masks kept": (dataclasses.replace(LONG, min_p=0.2), {"changes": MASKS}),
    "penalty": (dataclasses.replace(LONG, repetition_penalty=1.3), {}),
    "stops after some tokens": (
        dataclasses.replace(LONG, stop_ids=(4, 7), min_new_tokens=9),
        {"changes": MASKS},
    ),
    "stop strings": (dataclasses.replace(LONG, stop_strings=("ef", "k"), min_new_tokens=3), {}),
    "distributions": (dataclasses.replace(LONG, top_k=5), {"sampler": SamplerShape(11, 3)}),
    "pages": (LONG, {"cache_bytes": 1 << 20}),
    "few pages": (LONG, {"cache_bytes": 6 * page_bytes(CONFIG, Layout.single())}),
    "own tokens alone": (LONG, {"draft_bytes": 0}),
    "chunks of one": (LONG, {"chunk_tokens": 1}),
    "more drafts than a chunk": (LONG, {"chunk_tokens": 2, "draft_tokens": 5}),
    "experts recorded": (LONG, {"config": EXPERTS, "records_routes": True}),
}


@functools.cache
def both_ways(kind):
    """Returns engines with and without drafts, and what they completed."""
    sampling, options = KINDS[kind]
    engines = [make_engine(speculation, **options) for speculation in ("always", "off")]
    return engines, [completed(engine, requests(sampling)) for engine in engines]


@pytest.mark.samples(
    "stops after some tokens", gate=("min_p, masks kept", "distributions", "few pages")
)
@pytest.mark.parametrize("kind", KINDS)
def test_completions_are_those_without_drafts(kind):
    engines, found = both_ways(kind)
    assert_same(*found)
    stats, plain = (engine.stats for engine in engines)
    kept, other = (one.decode_tokens - one.surplus_tokens for one in (stats, plain))
    assert kept == other
    assert plain.drafted_tokens == 0
    assert (engines[0].chunk_tokens > 1) == (0 < stats.accepted_tokens < stats.drafted_tokens)
    assert 0 < stats.occupancy <= 1


@functools.cache
def greedy():
    """Returns greedy choices whose stop token ends some completions, and what they complete.

    Also returns the sequences as they go on without it, a row for each request.
    """
    choice = dataclasses.replace(LONG, greedy=True)
    asked = requests(choice, completions=1)
    found = completed(make_engine("off"), asked)
    for stop in range(11):
        ends = [one.tokens.tolist().index(stop) if stop in one.tokens else None for one in found]
        if None in ends and any(end is not None and end % 4 == 1 for end in ends):
            break
    choice = dataclasses.replace(choice, stop_ids=(stop,))
    rows = np.zeros((8, 64), np.int32)
    for row, request, one in zip(rows, asked, found, strict=False):
        whole = [*request.prompt, *one.tokens]
        row[: len(whole)] = whole
    expected = completed(make_engine("off"), requests(choice, completions=1))
    assert {one.finish for one in expected} == {"stop", "length"}
    return choice, expected, rows


def draft_from(rows, monkeypatch):
    """Lets drafts be the tokens of rows, however those were made."""

    def looked_up(text, count):
        after = (text.newest - text.own)[:, None] + 1 + jnp.arange(count)
        tokens = jnp.take_along_axis(jnp.asarray(rows), after, axis=1, mode="clip")
        return Drafts(tokens, jnp.full(len(tokens), count))

    monkeypatch.setattr(slots, "looked_up", looked_up)


def test_right_drafts_are_kept_up_to_ends_and_budgets(monkeypatch):
    choice, expected, rows = greedy()
    draft_from(rows, monkeypatch)
    engine = make_engine(chunk_tokens=24)
    assert_same(completed(engine, requests(choice, completions=1)), expected)
    tokens = [len(one.tokens) for one in expected]
    steps = [-(-count // 4) for count in tokens]
    stats = engine.stats
    assert (stats.decode_tokens, stats.steps) == (sum(tokens), max(steps))
    assert stats.accepted_tokens == sum(tokens) - sum(steps)


def test_wrong_drafts_change_nothing(monkeypatch):
    choice, expected, rows = greedy()
    draft_from((rows + 1) % 11, monkeypatch)
    engine = make_engine(chunk_tokens=28)
    assert_same(completed(engine, requests(choice, completions=1)), expected)
    assert engine.stats.drafted_tokens > engine.stats.accepted_tokens == 0
    assert engine.stats.steps == max(len(one.tokens) for one in expected)


MUTANTS = {
    "one token more": lambda is_fed, right, _: (
        is_fed & jnp.pad(right, ((0, 0), (1, 0)), constant_values=True)[:, :-1]
    ),
    "all tokens": lambda is_fed, *_: is_fed,
    "tokens after an end": lambda _, right, without_ends: without_ends,
}


@pytest.mark.parametrize(("number", "mutant"), [*enumerate(MUTANTS)], ids=MUTANTS)
def test_a_mutant_that_keeps_too_many_tokens_is_noticed(number, mutant, monkeypatch):
    def kept(fed, drawn, draws, ended, is_fed):
        right = verified(fed, drawn, draws, ended, is_fed)
        without_ends = verified(fed, drawn, draws, ended & False, is_fed)
        return MUTANTS[mutant](is_fed, right, without_ends)

    choice, expected, rows = greedy()
    # A row's draft is right, and then wrong; but at an end it goes on as if there were none.
    draft_from(np.where(np.arange(64) == 12, (rows + 1) % 11, rows), monkeypatch)
    asked = requests(choice, completions=1)
    # No other test has these chunks, so their programs are compiled here.
    assert_same(completed(make_engine(chunk_tokens=32 + 2 * number), asked), expected)
    monkeypatch.setattr(slots, "verified", kept)
    found = completed(make_engine(chunk_tokens=33 + 2 * number), asked)
    with pytest.raises(AssertionError):
        assert_same(found, expected)


@pytest.mark.parametrize("cache", ["keep", "recompute"])
def test_tokens_are_those_of_their_versions_when_weights_change_in_flight(cache):
    made = make_engine(cache=cache)
    made.submit(requests())
    found = []
    for version in (1, 2, 3):
        found += made.step()
        made.load(tiny.params(CONFIG, version, spread=0.5), version)
    found += made.advance()
    assert made.stats.accepted_tokens > 0
    assert sum(len({*one.versions.tolist()}) > 1 for one in found) >= 8
    for one in found:
        # Alone, one token a step, with the weights that each token is to have.
        alone = make_engine("off", slots=1, chunk_tokens=1, cache=cache)
        asked = requests()[one.ticket]
        begun = {index: DONE for index in range(4) if index != one.index}
        alone.submit([dataclasses.replace(asked, begun=begun)])
        finished = []
        for version in one.versions.tolist():
            if alone.version != version:
                seed = version or 0
                alone.load(tiny.params(CONFIG, seed, spread=0.5), version)
            finished += alone.step()
        (other,) = finished
        other = dataclasses.replace(other, ticket=one.ticket)
        assert_same([one], [other], atol=5e-5)


def test_completions_go_on_from_told_tokens():
    _, (_, expected) = both_ways("plain")
    first = make_engine()
    asked = requests()
    tickets = first.submit(asked)
    assert not first.step()
    handles = [Handle(ticket, index) for ticket in tickets for index in range(4)]
    so_far = first.progress(handles)
    counts = {len(one.tokens) for one in so_far.values()}
    assert len(counts) > 1, "each has as many as its drafts gave it"
    going_on = [
        dataclasses.replace(
            request, begun={at.index: one for at, one in so_far.items() if at.ticket == ticket}
        )
        for ticket, request in zip(tickets, asked, strict=True)
    ]
    for speculation in ("always", "off"):
        assert_same(completed(make_engine(speculation), going_on), expected)


def test_held_completions_are_extended_alike():
    engine = turns.make_engine(speculation="always", decode=turns.decode)
    played = turns.play_episodes(engine, count=5, turns=4, rng=np.random.default_rng(2))
    assert engine.stats.accepted_tokens > 0
    whole = [dataclasses.replace(request, held=False) for request, _ in played]
    expected = turns.make_engine(decode=turns.decode).generate(whole)
    for (_, completion), (other,) in zip(played, expected, strict=True):
        turns.assert_same(completion, other)


def test_prompts_with_images_are_completed_alike():
    found = []
    for speculation in ("always", "off"):
        engine = test_images_in_prompts.engine(speculation=speculation)
        asked = test_images_in_prompts.requests(completions=2)
        found.append((engine, completed(engine, asked)))
    (drafts, one), (_, other) = found
    assert_same(one, other)
    assert drafts.stats.accepted_tokens > 0


def test_given_tokens_are_read_several_at_once():
    engine = make_engine(chunk_tokens=4)
    greedy = dataclasses.replace(LONG, max_new_tokens=4, greedy=True)
    ((first,),) = engine.generate([requests(greedy, 1, held=True)[0]])
    before = engine.stats
    given = np.arange(2, 10, dtype=np.int32)
    engine.extend(first.handle, given, greedy)
    (second,) = engine.advance()
    whole = np.concatenate([requests()[0].prompt, first.tokens, given])
    ((expected,),) = make_engine("off").generate([CompletionRequest(whole, greedy)])
    np.testing.assert_array_equal(second.tokens, expected.tokens)
    # Eight given tokens and the last one before them, four a step.
    work = engine.stats - before
    assert work.decode_tokens == 4
    assert work.steps <= 3 + 4


@pytest.mark.nightly
def test_a_chunk_ends_when_a_sequence_has_its_tokens():
    engine = make_engine(slots=16, chunk_tokens=6)
    engine.submit(requests())
    for _ in range(3):
        before = {one.age: len(one.tokens) for one in engine._occupancy.live.values()}
        steps = engine.stats.steps
        engine.step()
        now = {one.age: len(one.tokens) for one in engine._occupancy.live.values()}
        counts = [now[age] - before.get(age, 0) for age in now]
        assert max(counts) == 6
        assert min(counts) >= engine.stats.steps - steps >= 2


def test_later_epochs_take_drafts_from_earlier_ones():
    greedy = dataclasses.replace(LONG, greedy=True)
    engine = make_engine()
    shares = []
    for _ in range(2):
        before = engine.stats
        found = completed(engine, requests(greedy, 1))
        work = engine.stats - before
        shares.append(work.accepted_tokens / work.drafted_tokens)
        assert_same(
            [dataclasses.replace(one, ticket=one.ticket % 3) for one in found],
            completed(make_engine("off"), requests(greedy, 1)),
        )
    assert shares[1] > 0.8 > shares[0]
