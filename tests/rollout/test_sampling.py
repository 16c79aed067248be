import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.rollout.sampling import Sampling, sample, sampled_logprobs

LOGITS = jnp.log(jnp.array([[0.1, 0.4, 0.2, 0.3]]))


def _probabilities(**choices):
    sampling = Sampling(max_new_tokens=1, eos_id=0, **choices)
    return np.exp(sampled_logprobs(LOGITS, sampling.knobs()))[0]


def test_temperature_sharpens():
    squares = np.array([0.01, 0.16, 0.04, 0.09])
    np.testing.assert_allclose(_probabilities(temperature=0.5), squares / squares.sum(), rtol=1e-5)


def test_top_k_keeps_the_likeliest():
    np.testing.assert_allclose(_probabilities(top_k=2), [0, 4 / 7, 0, 3 / 7], rtol=1e-5)


def test_top_p_keeps_the_fewest_that_reach_the_mass():
    np.testing.assert_allclose(_probabilities(top_p=0.6), [0, 4 / 7, 0, 3 / 7], rtol=1e-5)
    np.testing.assert_allclose(_probabilities(top_p=0.75), [0, 4 / 9, 2 / 9, 3 / 9], rtol=1e-5)


def test_top_p_applies_to_what_top_k_left():
    np.testing.assert_allclose(_probabilities(top_k=2, top_p=0.5), [0, 1, 0, 0], rtol=1e-5)


def test_equal_logits_do_not_let_more_than_k_through():
    sampling = Sampling(max_new_tokens=1, eos_id=0, top_k=2)
    scores = sampled_logprobs(jnp.zeros((1, 4)), sampling.knobs())
    assert np.isfinite(scores).sum() == 2


def test_greedy_has_all_its_mass_on_the_likeliest():
    np.testing.assert_array_equal(_probabilities(greedy=True), [0, 1, 0, 0])


def test_draws_have_the_frequencies_of_their_logprobs():
    knobs = Sampling(max_new_tokens=1, eos_id=0, temperature=2.0, top_k=3).knobs()
    keys = jax.random.split(jax.random.key(0), 20_000)
    tokens, logprobs = sample(keys, jnp.repeat(LOGITS, len(keys), axis=0), knobs)
    expected = np.exp(sampled_logprobs(LOGITS, knobs))[0]
    counted = np.bincount(tokens, minlength=4) / len(keys)
    np.testing.assert_allclose(counted, expected, atol=0.015)
    np.testing.assert_allclose(np.exp(logprobs), expected[np.asarray(tokens)], rtol=1e-5)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"temperature": 0.0}, r"temperature must be above 0, not 0.0; .*greedy"),
        ({"top_k": -1}, r"top_k must be at least 0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], not 0.0"),
        ({"max_new_tokens": 0}, r"max_new_tokens must be at least 1"),
    ],
)
def test_choices_outside_their_range_are_refused(choices, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**{"max_new_tokens": 1, "eos_id": 0, **choices})
