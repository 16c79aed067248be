"""Requests are given to samplers by what these have to do; no process is started here."""

import types

import jax
import numpy as np
import pytest

from rl_sync.addons.tinker import serve_tinker
from rl_sync.addons.tinker.adapter_passes import AdapterPasses, new_adapters
from rl_sync.addons.tinker.adapter_sampler import AdapterWeights
from rl_sync.addons.tinker.sampler_calls import (
    AskSampledModel,
    ExchangeSamples,
    SampledModel,
    SentRequest,
    SentResult,
)
from rl_sync.addons.tinker.sampler_pool import SamplerPool
from rl_sync.addons.tinker.sampler_process import SamplerProcess
from rl_sync.addons.tinker.tinker_calls import PromptChoice, SampleCall, SamplingChoice
from rl_sync.models.config import Lora
from rl_sync.settings.records import ConfigError
from rl_sync.weights.digest import digest
from tests.addons.tinker.conftest import BASE, BOUNDS


@pytest.fixture(name="pool")
def _pool(tmp_path):
    """A pool of two samplers, whose lives the test leads."""
    model = SampledModel("base", None, "digest", BOUNDS)
    pool = SamplerPool(model, {"sampler1": {}, "sampler2": {}}, tmp_path)
    for sampler, life in zip(pool._samplers, "ab", strict=True):
        sampler.life = life
    yield pool
    pool.close()


class Order:
    """A request; `outcomes` has its results."""

    def __init__(self, weights, completions=1):
        passes = types.SimpleNamespace(config=types.SimpleNamespace(lora=None))
        self.weights = types.SimpleNamespace(name=weights, passes=passes)
        self.call = SampleCall(PromptChoice(()), SamplingChoice(), "s", 0, completions)
        self.outcomes = []
        self.done = self.outcomes.append


def exchanged(pool, life, results=(), held=()):
    """Numbers and weights of the requests that a sampler fetches."""
    found = pool._exchange(ExchangeSamples(life, held, results, 0.0))
    return [(one.number, one.weights) for one in found]


def ready(pool, held_by_a=(), held_by_b=()):
    assert exchanged(pool, "a", held=held_by_a) == exchanged(pool, "b", held=held_by_b) == []


@pytest.mark.gate
def test_a_request_goes_to_the_sampler_with_the_fewest_completions(pool):
    ready(pool)
    pool.add(Order("w", 3))
    pool.add(Order("w", 1))
    pool.add(Order("w", 1))
    pool.add(Order("w", 2))
    assert exchanged(pool, "a") == [(0, "w")]
    assert exchanged(pool, "b") == [(1, "w"), (2, "w"), (3, "w")]
    assert exchanged(pool, "b") == []


@pytest.mark.gate
def test_of_equals_the_one_that_has_the_weights_gets_it(pool):
    ready(pool, held_by_b=["w"])
    pool.add(Order("w"))
    assert exchanged(pool, "b", held=["w"]) == [(0, "w")]


@pytest.mark.gate
def test_a_sampler_that_has_not_begun_gets_nothing_while_another_has(pool):
    assert exchanged(pool, "b") == []
    for _ in range(3):
        pool.add(Order("w"))
    assert len(exchanged(pool, "b")) == 3


@pytest.mark.gate
def test_a_result_is_told_once_and_with_the_weights_that_were_asked_for(pool):
    ready(pool)
    order = Order("w")
    pool.add(order)
    assert exchanged(pool, "a") == [(0, "w")]
    with pytest.raises(AssertionError):
        exchanged(pool, "a", [SentResult(0, "v", b"drawn with others")])
    assert order.outcomes == []
    assert exchanged(pool, "a", [SentResult(0, "w", b"drawn")]) == []
    assert order.outcomes == [b"drawn"]


def test_requests_of_a_sampler_that_is_given_up_go_to_the_other_and_its_late_results_nowhere(
    pool, monkeypatch
):
    ready(pool)
    monkeypatch.setattr(pool, "_limits", pool._limits.__class__(restarts=0))
    pool._has_begun = True
    orders = [Order("w"), Order("w")]
    for order in orders:
        pool.add(order)
    assert exchanged(pool, "a") == [(0, "w")]
    pool._replace(pool._samplers[0], "sampler1 was killed by SIGKILL")
    assert exchanged(pool, "a", [SentResult(0, "w", b"late")]) == []
    assert exchanged(pool, "b") == [(1, "w"), (0, "w")]
    assert exchanged(pool, "b", [SentResult(0, "w", b"drawn")]) == []
    assert orders[0].outcomes == [b"drawn"]
    # Without any sampler all that is unfinished fails, and what comes later, too.
    pool._replace(pool._samplers[0], "sampler2 was killed by SIGSEGV")
    late = Order("w")
    pool.add(late)
    for order in (orders[1], late):
        assert "No sampler is left: sampler2 was killed by SIGSEGV" in str(order.outcomes[0])
    assert pool.is_busy


@pytest.mark.gate
def test_requests_of_a_sampler_that_is_started_again_go_to_one_that_has_begun(pool, monkeypatch):
    ready(pool)
    monkeypatch.setattr(pool, "_begin", lambda sampler: setattr(sampler, "life", "c"))
    pool._has_begun = True
    order = Order("w", 2)
    pool.add(order)
    pool.add(Order("w", 9))
    assert exchanged(pool, "a", held=["w"]) == [(0, "w")]
    assert exchanged(pool, "b") == [(1, "w")]
    pool._replace(pool._samplers[0], "sampler1 was killed by SIGKILL")
    assert exchanged(pool, "a", [SentResult(0, "w", b"late")]) == []
    assert exchanged(pool, "c") == []
    assert exchanged(pool, "b", [SentResult(1, "w", b"drawn")]) == [(0, "w")]
    assert order.outcomes == []


def test_a_request_that_ends_its_samplers_fails_and_those_that_wait_do_not(pool, monkeypatch):
    lives = iter("cdefg")
    monkeypatch.setattr(pool, "_begin", lambda sampler: setattr(sampler, "life", next(lives)))
    pool._has_begun = True
    pool._give_up([pool._samplers[1]], "sampler2 is not needed")
    assert exchanged(pool, "a") == []
    culprit, waiting = Order("w"), Order("w")
    pool.add(culprit)
    for life in "acd":
        assert exchanged(pool, life) == [(0, "w")]
        if life == "d":
            pool.add(waiting)
        pool._replace(pool._samplers[0], f"sampler1 of life {life} was killed by SIGSEGV")
    (outcome,) = culprit.outcomes
    assert "3 samplers ended with this request" in str(outcome)
    assert "the last: sampler1 of life d was killed by SIGSEGV" in str(outcome)
    assert waiting.outcomes == []
    assert exchanged(pool, "e") == [(1, "w")]


class Server:
    """Answers a sampler's calls with adapters by the numbers of requests."""

    def __init__(self, policy, adapters):
        self._model = SampledModel(str(BASE), None, digest(policy.params), BOUNDS)
        self._adapters, self.asked = adapters, []

    def call(self, call, deadline_secs):
        if isinstance(call, AskSampledModel):
            return self._model
        self.asked.append((call.number, call.index))
        return np.asarray(jax.tree.leaves(self._adapters[call.number])[call.index])


@pytest.mark.gate
def test_a_sampler_keeps_the_latest_weights_and_takes_no_others_for_them(policy):
    shape = Lora(2, 32.0, ("q",))
    passes = AdapterPasses.of_policy(policy, shape, BOUNDS.batch_tokens)
    adapters = [new_adapters(passes.config, policy.layout, seed) for seed in range(3)]
    names = [AdapterWeights(passes, one).name for one in adapters]
    assert len({*names}) == 3
    server = Server(policy, adapters)
    sampler = SamplerProcess(server, "a")

    def fetched(number, name=None):
        """The arrays that a request's weights took, each fetched once."""
        server.asked.clear()
        weights = sampler._weights(SentRequest(number, None, name or names[number], shape))
        jax.tree.map(np.testing.assert_array_equal, weights.adapters, adapters[number])
        return server.asked

    both = len(jax.tree.leaves(adapters[0]))
    assert [len(fetched(number)) for number in (0, 1, 1, 0, 2, 0, 1)] == [
        both, both, 0, 0, both, 0, both,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="arrived in place of"):
        fetched(2, names[0] + "0")


@pytest.mark.gate
def test_too_few_gpus_for_the_samplers_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(
        ConfigError, match=r"need 3 GPUs .* names 2: name more, lower --samplers, or share one"
    ):
        serve_tinker._devices(2)
    assert serve_tinker._devices(0) == {"server": {}}
    with pytest.raises(ConfigError, match="--samplers=999 would start 999 processes"):
        serve_tinker._devices(999)
