"""Losses, gradients and steps, against independent computations with our own parts."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.addons.tinker.adapter_passes import (
    AdamRates,
    AdapterPasses,
    AdapterState,
    new_adapters,
    stepped,
)
from rl_sync.addons.tinker.loss_data import LossDatum
from rl_sync.learning.forward import Forward, RowInputs
from rl_sync.models.config import Lora
from rl_sync.models.sharding import Layout
from rl_sync.models.vocabulary.token_sets import LOGITS_BYTES
from tests.models import tiny

pytestmark = pytest.mark.gate

CONFIG = dataclasses.replace(tiny.CONFIG, lora=Lora(2, 32.0))
CLIPS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
OPTIONS = {"cross_entropy": {}, "importance_sampling": {}, "ppo": CLIPS, "cispo": CLIPS}
FORWARD = Forward(CONFIG, 1.0, LOGITS_BYTES)


@pytest.fixture(scope="module", name="passes")
def _passes():
    base = tiny.params(tiny.CONFIG)
    return AdapterPasses(CONFIG, base, batch_tokens=64, logits_bytes=LOGITS_BYTES)


@pytest.fixture(scope="module", name="adapters")
def _adapters():
    drawn = np.random.default_rng(3)
    made = new_adapters(CONFIG, Layout.single(), 0)
    return jax.tree.map(lambda x: np.float32(drawn.normal(0, 0.05, x.shape)), made)


def close(one, other):
    """Says that two gradients are the same but for rounding."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    greatest = max(float(np.abs(x).max()) for x in map(np.asarray, jax.tree.leaves(other)))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-5 * greatest, rtol=0)


def shifted(length, loss, seed):
    """A datum whose targets are the next tokens, as when a sequence is trained on."""
    drawn = np.random.default_rng(seed)
    tokens = drawn.integers(0, 11, length + 1).astype(np.int32)
    shape = (length, 1)
    inputs = {"weights": drawn.normal(0, 1, shape)}
    if loss != "cross_entropy":
        # Behavior probabilities on both sides of the clips.
        inputs = {
            "logprobs": drawn.normal(-2.4, 0.7, shape),
            "advantages": drawn.normal(0, 1, shape),
        }
    inputs = {name: values.astype(np.float32) for name, values in inputs.items()}
    return tokens, LossDatum(tokens[:-1], tokens[1:, None], inputs, True)


def by_definition(loss, logprobs, inputs):
    """The sum of a loss as Tinker's documentation writes it."""
    if loss == "cross_entropy":
        return -(logprobs * inputs["weights"]).sum()
    ratio, advantages = jnp.exp(logprobs - inputs["logprobs"]), inputs["advantages"]
    clipped = jnp.clip(ratio, 0.8, 1.2)
    if loss == "importance_sampling":
        return -(ratio * advantages).sum()
    if loss == "ppo":
        return -jnp.minimum(ratio * advantages, clipped * advantages).sum()
    return -(jax.lax.stop_gradient(clipped) * logprobs * advantages).sum()


@pytest.mark.parametrize(
    "loss",
    [
        "cross_entropy",
        pytest.param("ppo", marks=pytest.mark.gate),
        pytest.param("importance_sampling", marks=pytest.mark.gate),
        pytest.param("cispo", marks=pytest.mark.nightly),
    ],
)
def test_loss_logprobs_and_gradient_are_those_of_our_forward_pass(passes, adapters, loss):
    rows = [shifted(length, loss, seed) for seed, length in enumerate((7, 12))]

    def total(trained):
        sums, logprobs = [], []
        for tokens, datum in rows:  # Each by itself, without padding.
            found = FORWARD.logprobs(trained, passes.base, RowInputs(jnp.asarray(tokens[None])))
            inputs = {name: values[:, 0] for name, values in datum.inputs.items()}
            logprobs.append(found[0, 1:])
            sums.append(by_definition(loss, logprobs[-1], inputs))
        return sum(sums), logprobs

    (expected, logprobs), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(adapters)
    data = [datum for _, datum in rows]
    computed = passes.run(adapters, data, loss, OPTIONS[loss], backward=True)
    assert computed.loss == pytest.approx(float(expected), rel=1e-5)
    close(computed.gradient, gradient)
    for found, ours in zip(logprobs, computed.logprobs, strict=True):
        np.testing.assert_allclose(ours[:, 0], found, rtol=1e-5, atol=1e-5)


def test_gradients_of_calls_add_up_to_that_of_one(passes, adapters):
    data = [shifted(length, "cross_entropy", length)[1] for length in (7, 12)]
    whole = passes.run(adapters, data, "cross_entropy", {}, backward=True)
    first = passes.run(adapters, data[:1], "cross_entropy", {}, backward=True)
    rest = passes.run(adapters, data[1:], "cross_entropy", {}, first.gradient, backward=True)
    assert first.loss + rest.loss == pytest.approx(whole.loss, rel=1e-6)
    close(rest.gradient, whole.gradient)


def test_several_targets_of_a_token_have_the_logprobs_that_each_has_alone(passes, adapters):
    tokens = np.array([1, 5, 2, 7], np.int32)
    targets = np.array([[5, 3, 0], [2, 2, 9], [7, 1, 4], [10, 0, 6]], np.int32)
    weights = np.linspace(-1, 1, 12).reshape(4, 3).astype(np.float32)
    both = LossDatum(tokens, targets, {"weights": weights}, False)
    apart = [
        LossDatum(tokens, targets[:, [k]], {"weights": weights[:, [k]]}, True) for k in range(3)
    ]
    together = passes.run(adapters, [both], "cross_entropy", {}, backward=True)
    single = passes.run(adapters, apart, "cross_entropy", {}, backward=True)
    np.testing.assert_allclose(
        together.logprobs[0], np.concatenate(single.logprobs, axis=1), rtol=1e-5, atol=1e-6
    )
    assert together.loss == pytest.approx(single.loss, rel=1e-5)
    close(together.gradient, single.gradient)


def test_new_adapters_change_nothing(passes):
    tokens = np.array([3, 1, 4, 1, 5], np.int32)
    made = new_adapters(CONFIG, Layout.single(), 7)
    without = AdapterPasses(tiny.CONFIG, passes.base, 64, LOGITS_BYTES)
    found = without.logprobs({}, tokens)
    assert math.isnan(found[0])
    np.testing.assert_allclose(passes.logprobs(made, tokens)[1:], found[1:], rtol=1e-6)


def test_two_steps_are_those_of_adamw_by_hand():
    # g = (3, −4), whose norm 5 is clipped to 1: (0.6, −0.8). Then g = (0.3, 0.4), with norm 0.5.
    state = AdapterState.begun({"x": jnp.array([1.0, 2.0])})
    rates = AdamRates(0.1, 0.9, 0.95, 1e-8, 0.01, 1.0)
    state, norm = stepped(state, {"x": jnp.array([3.0, -4.0])}, rates)
    assert norm == pytest.approx(5.0)
    # m̂ / √v̂ = sign(g) at the first step: x·(1 − 0.1·0.01) − 0.1·sign(g).
    np.testing.assert_allclose(state.adapters["x"], [0.899, 2.098], rtol=1e-6)
    state, norm = stepped(state, {"x": jnp.array([0.3, 0.4])}, rates)
    assert norm == pytest.approx(0.5)
    # m = (0.9·0.06 + 0.03, −0.9·0.08 + 0.04) = (0.084, −0.032), and 1 − 0.9² = 0.19;
    # v = (0.95·0.018 + 0.0045, 0.95·0.032 + 0.008) = (0.0216, 0.0384), and 1 − 0.95² = 0.0975.
    taken = [0.084 / 0.19 / math.sqrt(0.0216 / 0.0975), -0.032 / 0.19 / math.sqrt(0.0384 / 0.0975)]
    expected = [0.899 * 0.999 - 0.1 * taken[0], 2.098 * 0.999 - 0.1 * taken[1]]
    np.testing.assert_allclose(state.adapters["x"], expected, rtol=1e-5)
    assert state.steps == 2


def test_a_gradient_that_is_not_finite_changes_nothing():
    state = AdapterState.begun({"x": jnp.array([1.0, 2.0])})
    rates = AdamRates(0.1, 0.9, 0.95, 1e-8, 0.0, 0.0)
    after, norm = stepped(state, {"x": jnp.array([1.0, math.nan])}, rates)
    assert after is state
    assert math.isnan(norm)
