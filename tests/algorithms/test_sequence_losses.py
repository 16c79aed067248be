import jax
import numpy as np
import pytest

from rl_sync.algorithms import aggregation, sequence_losses
from tests.algorithms.compiled import compiled
from tests.algorithms.golden import MASK, ROW_ADVANTAGES, VALUES, assert_is_reference, packed

OLD, ADVANTAGES = VALUES["old_logprobs"], VALUES["adv/grpo"]
BOTH = np.array([[True, True]])
gspo, gmpo = compiled(sequence_losses.gspo), compiled(sequence_losses.gmpo)
LOSSES = {
    "gspo": lambda x, old, a, m, s: sequence_losses.gspo(x, old, a, m, 0.03, 0.04, s),
    "gmpo": lambda x, old, a, m, s: sequence_losses.gmpo(x, old, a, m, 0.4, 0.4, s),
    "topr": lambda x, old, a, m, s: sequence_losses.topr(x, old, a, m, s),
    "opmd": lambda x, old, a, m, s: sequence_losses.opmd(x, old, a, m, 0.5, s),
}


def test_gspo_is_the_reference_s():
    def loss_of(logprobs):
        values = sequence_losses.gspo(logprobs, OLD, ADVANTAGES, MASK, 0.03, 0.04)
        return aggregation.sequence_mean(values, MASK)

    assert_is_reference(loss_of, "gspo")


def test_gmpo_is_the_reference_s():
    def loss_of(logprobs):
        values = sequence_losses.gmpo(logprobs, OLD, ROW_ADVANTAGES, MASK, 0.4, 0.4)
        return aggregation.sequence_mean(values, MASK)

    assert_is_reference(loss_of, "gmpo")


def test_gspo_by_hand():
    """Ratios 2 and 8 give the sequence's ratio 4, which is clipped to 1.04 only if A > 0."""
    logprobs, old = np.log(np.array([[2.0, 8.0]])), np.zeros((1, 2))
    up, down = (gspo(logprobs, old, np.array([[sign]]), BOTH, 0.03, 0.04) for sign in (1.0, -1.0))
    np.testing.assert_allclose(up, [[-1.04, -1.04]])
    np.testing.assert_allclose(down, [[4.0, 4.0]])


def test_gmpo_by_hand():
    """If A > 0 the ratio 8 is clipped to e^0.4; if A < 0 it is not clipped."""
    logprobs, old = np.log(np.array([[1.0, 8.0]])), np.zeros((1, 2))
    up, down = (gmpo(logprobs, old, np.array([[sign]]), BOTH, 0.4, 0.4) for sign in (1.0, -1.0))
    np.testing.assert_allclose(up, [[-np.exp(0.2)]])
    np.testing.assert_allclose(down, [[np.sqrt(8)]])


def test_topr_by_hand_learns_the_good_and_lets_go_of_the_bad_that_is_unlikely():
    """The sequences' ratios are ½ · ½ = ¼, and 2 · 2 = 4, which is bounded by 1."""
    logprobs = np.log(np.array([[0.5, 0.5], [0.5, 0.5], [2.0, 2.0]]))
    advantages = np.array([[1.0], [-1.0], [-1.0]])
    mask, old = np.ones((3, 2), bool), np.zeros((3, 2))

    def loss_of(logprobs):
        return sequence_losses.topr(logprobs, old, advantages, mask).sum()

    gradient = compiled(jax.grad(loss_of))(logprobs)
    np.testing.assert_allclose(gradient, [[-1, -1], [0.25, 0.25], [1, 1]])


def test_opmd_by_hand_has_the_gradient_of_mirror_descent():
    """−A + τ · Σ log ρ at every token: here −2 + 0.5 · (0.1 + 0.3)."""
    logprobs, old = np.array([[0.1, 0.3]]), np.zeros((1, 2))

    def loss_of(logprobs):
        values = sequence_losses.opmd(logprobs, old, np.array([[2.0]]), BOTH, 0.5)
        return aggregation.sequence_sum_mean(values, BOTH)

    np.testing.assert_allclose(compiled(jax.grad(loss_of))(logprobs), [[-1.8, -1.8]])


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_sequences_in_one_row_do_not_see_each_other(name):
    def loss_of(logprobs, old, advantages, mask, sequences):
        values = LOSSES[name](logprobs, old, advantages, mask, sequences)
        return aggregation.sequence_sum_mean(values, mask, 12)

    gradient = compiled(jax.grad(loss_of))
    logprobs, mask, sequences = packed(VALUES["logprobs"])
    old, advantages = packed(OLD)[0], packed(ADVANTAGES)[0]
    together = gradient(logprobs, old, advantages, mask, sequences)
    apart = gradient(VALUES["logprobs"], OLD, ROW_ADVANTAGES, MASK, None)
    np.testing.assert_allclose(together, packed(apart)[0], atol=1e-9)


def test_a_ratio_beyond_all_bounds_stays_finite():
    logprobs = np.full((1, 2), 1e4)
    values = gspo(logprobs, np.zeros((1, 2)), -np.ones((1, 1)), BOTH, 0.1, 0.1)
    assert np.isfinite(values).all()
