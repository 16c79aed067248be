import jax
import numpy as np

from rl_sync.algorithms import aggregation, preference
from tests.algorithms.compiled import compiled

MASK = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]] * 2, bool)
LOGPROBS = np.random.default_rng(0).normal(-1, 0.5, MASK.shape).astype(np.float32)
REF = np.random.default_rng(1).normal(-1, 0.5, MASK.shape).astype(np.float32)
ADVANTAGES = np.array([0.0, -1.0, 1.0, 0.0] + [0.0] * 4)[:, None]


def _loss(logprobs):
    values = preference.dpo_of_groups(
        logprobs, REF, ADVANTAGES, MASK, 0.5, group_size=4, sequence_count=8
    )
    return aggregation.sequence_sum_mean(values, MASK, 8)


def test_the_mean_over_groups_is_that_of_each_pair_s_loss():
    """The second group has no pair, and so neither loss nor gradient, but counts as a group."""
    margin = np.where(MASK, LOGPROBS - REF, 0).sum(axis=1)
    one = np.log1p(np.exp(-0.5 * (margin[2] - margin[1])))
    loss, gradient = compiled(jax.value_and_grad(_loss))(LOGPROBS)
    np.testing.assert_allclose(loss, one / 2, rtol=1e-5)
    pull = 0.5 * (1 - np.exp(-one)) / 2
    np.testing.assert_allclose(gradient[2][MASK[2]], -pull, rtol=1e-4)
    np.testing.assert_allclose(gradient[1][MASK[1]], pull, rtol=1e-4)
    assert not gradient[[0, 3, 4, 5, 6, 7]].any()
