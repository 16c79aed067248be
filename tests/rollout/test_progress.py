"""Completions that one engine has begun go on in another one as they would have there."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rl_sync.models.sharding import Layout
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest, FinishedCompletion, Handle
from rl_sync.rollout.sampling import Sampling
from tests.models import tiny

PARAMS = tiny.params()
PROMPTS = [np.array(ids, np.int32) for ids in ([3, 4, 5, 6], [7, 8], [2, 2, 9])]
PLAIN = Sampling(max_new_tokens=9, stop_ids=(1,))
CHOICES = {
    "plain": PLAIN,
    "greedy": dataclasses.replace(PLAIN, greedy=True),
    "with sampling masks": dataclasses.replace(PLAIN, top_k=4, top_p=0.9),
    "with a penalty": dataclasses.replace(PLAIN, repetition_penalty=1.5, min_new_tokens=4),
    "with stop strings": dataclasses.replace(PLAIN, stop_strings=("ab", "j"), min_new_tokens=2),
}


def decode(ids):
    return "".join(chr(ord("a") + token) for token in ids)


def engine(params=PARAMS, version=0, **options):
    options = {"slots": 8, "chunk_tokens": 2, "decode": decode, **options}
    made = Engine(tiny.CONFIG, Layout.single(), EngineOptions(**options))
    made.load(params, version)
    return made


def requests(sampling):
    return [CompletionRequest(p, sampling, 3, (0, i)) for i, p in enumerate(PROMPTS)]


def progress_of(made, finished):
    """Returns the progress of each completion so far, by request and index."""
    every = [Handle(ticket, index) for ticket in range(len(PROMPTS)) for index in range(3)]
    in_flight = {(at.ticket, at.index): one for at, one in made.progress(every).items()}
    return in_flight | {(one.ticket, one.index): one.progress() for one in finished}


def continued(made, asked, so_far):
    """Returns the completions of an engine that goes on, and of those that had an end before."""
    going_on = [
        dataclasses.replace(
            request, begun={index: one for (at, index), one in so_far.items() if at == number}
        )
        for number, request in enumerate(asked)
    ]
    tickets = made.submit(going_on)
    found = made.advance()
    for number, ticket in enumerate(tickets):
        found += [
            FinishedCompletion.of(Handle(ticket, index), one)
            for (at, index), one in so_far.items()
            if at == number and one.finish is not None
        ]
    return sorted(found, key=lambda one: (one.ticket, one.index))


def assert_same(found, expected):
    assert [(one.ticket, one.index) for one in found] == [
        (one.ticket, one.index) for one in expected
    ]
    for one, other in zip(found, expected, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
        assert one.finish == other.finish
        entries = sorted(one.masks.tolist()), sorted(other.masks.tolist())
        assert entries[0] == entries[1]


@pytest.mark.gate
@pytest.mark.parametrize("name", CHOICES)
def test_completions_go_on_elsewhere_with_the_same_tokens_from_any_moment(name):
    asked = requests(CHOICES[name])
    whole = [one for group in engine().generate(asked) for one in group]
    assert len({len(one.tokens) for one in whole}) > 1 or name == "greedy"
    for steps in range(1, 5):
        first = engine()
        first.submit(asked)
        finished = [one for _ in range(steps) for one in first.step()]
        so_far = progress_of(first, finished)
        assert any(len(one.tokens) > 0 for one in so_far.values())
        other = engine(cache_bytes=1 << 20) if steps % 2 else engine()
        assert_same(continued(other, asked, so_far), whole)
        left = sum(len(one.tokens) for one in whole)
        left -= sum(len(one.tokens) for one in so_far.values())
        assert other.stats.decode_tokens >= left


def test_only_the_tokens_that_are_left_are_drawn_and_given_ones_keep_their_versions():
    asked = requests(dataclasses.replace(PLAIN, stop_ids=()))
    first = engine()
    first.submit(asked)
    finished = [one for _ in range(2) for one in first.step()]
    assert not finished
    so_far = progress_of(first, finished)
    given = sum(len(one.tokens) for one in so_far.values())
    assert given > 9
    other = engine(version=7)
    found = continued(other, asked, so_far)
    assert other.stats.decode_tokens == 9 * 9 - given
    for one in found:
        begun = so_far.get((one.ticket, one.index))
        count = 0 if begun is None else len(begun.tokens)
        assert one.versions.tolist() == [0] * count + [7] * (9 - count)
        if begun is not None:
            assert one.logprobs[:count].tolist() == begun.logprobs.tolist()


def test_a_cut_is_no_end_and_an_end_is_not_generated_again():
    asked = requests(PLAIN)
    made = engine()
    made.submit(asked)
    finished = [one for _ in range(3) for one in made.step()]
    ended = {(one.ticket, one.index) for one in finished}
    so_far = progress_of(made, finished)
    assert ended
    assert {at for at, one in so_far.items() if one.finish is not None} == ended
    other = engine()
    one = so_far[min(ended)]
    tickets = other.submit([dataclasses.replace(asked[0], begun=dict.fromkeys(range(3), one))])
    assert tickets == [0]
    assert (other.unfinished, other.advance()) == (0, [])
