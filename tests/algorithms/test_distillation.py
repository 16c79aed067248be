"""Divergences from a teacher at drawn tokens, beside numbers computed by hand."""

import jax.numpy as jnp
import numpy as np

from rl_sync.algorithms.distillation import best_divergence, sampled_advantages

POLICY = np.array([0.5, 0.25, 0.125, 0.125])
TEACHER = np.array([0.25, 0.5, 0.0625, 0.1875])


def test_the_mean_advantage_of_drawn_tokens_is_the_negative_divergence():
    advantages = sampled_advantages(jnp.log(POLICY)[None], jnp.log(TEACHER)[None])[0]
    np.testing.assert_allclose(advantages[:3], np.log([0.5, 2.0, 0.5]), rtol=1e-6)
    divergence = 0.5 * np.log(2) - 0.25 * np.log(2) + 0.125 * np.log(2) + 0.125 * np.log(2 / 3)
    np.testing.assert_allclose(POLICY @ advantages, -divergence, rtol=1e-6)


def test_the_rest_of_the_vocabulary_is_one_outcome():
    two = best_divergence(jnp.log(POLICY[:2]), jnp.log(TEACHER[:2]))
    np.testing.assert_allclose(two, 0.25 * np.log(2), rtol=1e-6)  # Both tails are a quarter.
    one = best_divergence(jnp.log(POLICY[:1]), jnp.log(TEACHER[:1]))
    np.testing.assert_allclose(one, 0.5 * np.log(2) + 0.5 * np.log(0.5 / 0.75), rtol=1e-6)
    every = best_divergence(jnp.log(POLICY), jnp.log(TEACHER))
    np.testing.assert_allclose(every, POLICY @ np.log(POLICY / TEACHER), rtol=1e-6)
