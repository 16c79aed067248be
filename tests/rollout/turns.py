"""Episodes on an engine: held completions of a tiny model that go on after given tokens."""

import dataclasses

import numpy as np

from rl_sync.models.sharding import Layout
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from tests.models import tiny

EOS = 1
LENGTH = 96
CONFIG = dataclasses.replace(tiny.CONFIG, max_length=LENGTH)
PARAMS = tiny.params(CONFIG)
OTHERS = tiny.params(CONFIG, seed=5)
PROMPT = np.array([3, 4, 5, 6], np.int32)
GIVEN = np.array([7, EOS, 2, 9, 10], np.int32)
SAMPLING = Sampling(max_new_tokens=8, stop_ids=(EOS,))
GREEDY = Sampling(max_new_tokens=8, stop_ids=(), greedy=True)


def decode(ids):
    return "".join("abcdefghijk"[i] * (i % 3) for i in ids)


CHOICES = [
    SAMPLING,
    Sampling(6, (EOS, 4), repetition_penalty=1.7, min_new_tokens=3),
    Sampling(9, (), greedy=True, repetition_penalty=1.3),
    Sampling(5, (), temperature=2.0, top_k=4, stop_strings=("cch", "ff")),
    Sampling(7, (0, 1, 2, 3, 4), min_new_tokens=4, top_p=0.8, stop_strings=("ee",)),
]


def make_engine(config=CONFIG, params=PARAMS, slots=8, chunk_tokens=4, **options):
    engine = Engine(
        config, Layout.single(), EngineOptions(slots=slots, chunk_tokens=chunk_tokens, **options)
    )
    engine.load(params, version=0)
    return engine


def held_request(sampling=GREEDY, seed=(0,), prompt=PROMPT, completions=1):
    return CompletionRequest(prompt, sampling, completions, seed, held=True)


def whole(*parts):
    return np.concatenate([getattr(part, "tokens", part) for part in parts])


def assert_same(one, other, atol=1e-5):
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=atol)
    assert one.finish == other.finish


def fresh(prompt, sampling, seed, **options):
    ((completion,),) = make_engine(**options).generate(
        [CompletionRequest(prompt, sampling, 1, seed)]
    )
    return completion


def play_episodes(engine, count, turns, rng):
    """Plays episodes side by side, whose turns come at any time and in any order.

    Returns:
      The request that each turn stands for, and its completion.
    """
    pending, played = {}, []
    for number in range(count):
        prompt = rng.integers(2, 11, rng.integers(1, 7)).astype(np.int32)
        request = held_request(CHOICES[number % len(CHOICES)], (number, 0), prompt)
        (ticket,) = engine.submit([request])
        pending[ticket] = (request, 0)
    waiting = []
    while pending or waiting:
        for completion in engine.step():
            request, turn = pending.pop(completion.ticket)
            played.append((request, completion))
            waiting.append((request, completion, turn + 1))
        for request, completion, turn in list(waiting):
            if pending and rng.random() < 0.5:
                continue
            waiting.remove((request, completion, turn))
            if turn == turns:
                engine.release(completion.handle)
                continue
            given = rng.integers(0, 11, rng.integers(0, 8)).astype(np.int32)
            sampling, seed = CHOICES[rng.integers(len(CHOICES))], (request.seed[0], turn)
            ticket = engine.extend(completion.handle, given, sampling, seed=seed, held=True)
            everything = whole(request.prompt, completion, given)
            pending[ticket] = (CompletionRequest(everything, sampling, 1, seed), turn)
    return played
