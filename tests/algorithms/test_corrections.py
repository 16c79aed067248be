import jax
import jax.numpy as jnp
import numpy as np

from rl_sync.algorithms.corrections import truncated_sequence_weights, truncated_token_weights
from tests.algorithms.golden import MASK, VALUES

OLD, BEHAVIOR = jnp.asarray(VALUES["old_logprobs"]), jnp.asarray(VALUES["behavior_logprobs"])


def test_token_weights_are_the_reference_s():
    ours = truncated_token_weights(OLD, BEHAVIOR, 2.0)
    np.testing.assert_allclose(
        np.where(MASK, ours, 0), np.where(MASK, VALUES["is/token_truncated_2"], 0), rtol=1e-6
    )


def test_sequence_weights_are_the_reference_s():
    ours = np.broadcast_to(truncated_sequence_weights(OLD, BEHAVIOR, MASK, 2.0), MASK.shape)
    expected = np.where(MASK, VALUES["is/sequence_truncated_2"], 0)
    np.testing.assert_allclose(np.where(MASK, ours, 0), expected, rtol=1e-6)


def test_by_hand():
    logprobs, behavior = jnp.log(jnp.array([[0.9, 0.2]])), jnp.log(jnp.array([[0.3, 0.4]]))
    np.testing.assert_allclose(truncated_token_weights(logprobs, behavior, 2.0), [[2.0, 0.5]])
    both = jnp.array([[True, True]])
    np.testing.assert_allclose(
        truncated_sequence_weights(logprobs, behavior, both, 2.0), [[1.5]], rtol=1e-6
    )
    first = jnp.array([[True, False]])
    np.testing.assert_allclose(truncated_sequence_weights(logprobs, behavior, first, 2.0), [[2.0]])


def test_no_gradient_flows_through_the_weights():
    gradient = jax.grad(lambda x: truncated_token_weights(x, BEHAVIOR, 2.0).sum())(OLD)
    assert np.all(gradient == 0)
