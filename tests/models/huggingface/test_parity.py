"""Every family gives the numbers that transformers gives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.sharding import Layout
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from tests.models import tiny
from tests.models.huggingface import golden


@pytest.fixture(scope="module", params=golden.FAMILIES)
def model(request):
    return *golden.load(golden.ROOT / request.param), golden.expected(request.param)


def _close(ours, theirs):
    """Asserts equality within 1e-4 of the largest value."""
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())


def _learning(config, params, expected):
    """Computes log-probabilities of real tokens, their loss, and the norm of its gradient."""
    tokens, real = expected["tokens"], _real(expected)

    def loss_of(params):
        logprobs, _ = token_logprobs(config, params, tokens)
        later = jnp.where(real[:, 1:], logprobs[:, 1:], 0.0)
        return -later.sum() / real[:, 1:].sum(), later

    def run(params):
        (loss, logprobs), gradient = jax.value_and_grad(loss_of, has_aux=True)(params)
        norm = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(gradient)))
        return logprobs, loss, norm

    return jax.jit(run)(params)


def _real(expected):
    return np.arange(expected["tokens"].shape[1]) < expected["lengths"][:, None]


def test_logits_are_those_of_transformers(model):
    config, params, expected = model
    found = tiny.forward(config, params, expected["tokens"])
    _close(np.where(_real(expected)[..., None], found, 0.0), expected["logits"])


def _assert_learns_alike(config, params, expected):
    logprobs, loss, norm = _learning(config, params, expected)
    _close(logprobs, expected["token_logprobs"])
    _close(loss, expected["loss"])
    _close(norm, expected["grad_norm"])


@pytest.mark.gate
@pytest.mark.samples("qwen3_moe", "gemma3")
def test_logprobs_loss_and_gradient_are_those_of_transformers(model):
    _assert_learns_alike(*model)


@pytest.mark.nightly
@pytest.mark.samples("gemma3")
@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe", "gemma3"])
def test_rematerialization_and_the_way_to_attend_change_nothing(family):
    config, params = golden.load(golden.ROOT / family)
    changed = dataclasses.replace(config, remat="full", attention="dot_product")
    _assert_learns_alike(changed, params, golden.expected(family))


@pytest.mark.nightly
@pytest.mark.samples("gemma3", gate=("qwen3", "llama3"))
def test_cached_greedy_decoding_continues_as_transformers_does(model):
    config, params, expected = model
    tokens, lengths = expected["tokens"], expected["lengths"]
    count = expected["greedy"].shape[1]
    sampling = Sampling(max_new_tokens=count, stop_ids=(), greedy=True)
    engine = Engine(config, Layout.single(), EngineOptions(slots=len(lengths)))
    engine.load(params, version=0)
    prompts = [row[:length] for row, length in zip(tokens, lengths, strict=True)]
    generated = engine.generate([CompletionRequest(prompt, sampling) for prompt in prompts])
    for (completion,), greedy in zip(generated, expected["greedy"], strict=True):
        np.testing.assert_array_equal(completion.tokens, greedy)
