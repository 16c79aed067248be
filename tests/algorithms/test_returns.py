import numpy as np
import pytest

from rl_sync.algorithms import masking, returns
from tests.algorithms.compiled import compiled
from tests.algorithms.golden import LENGTHS, MASK, VALUES, packed

at_the_end, gae, n_step, reinforce_pp, remax = map(
    compiled,
    (returns.at_the_end, returns.gae, returns.n_step, returns.reinforce_pp, returns.remax),
)
REWARDS = np.where(np.arange(10) == LENGTHS[:, None] - 1, VALUES["rewards"][:, None], 0)
VALUE = VALUES["values"]
TWO = np.array([[True, True, False, False]])


def _assert_close(ours, name):
    np.testing.assert_allclose(np.where(MASK, ours, 0), VALUES[name], atol=1e-6)


def test_rewards_stand_at_the_last_token():
    ours = at_the_end(VALUES["rewards"], MASK)
    np.testing.assert_array_equal(ours, REWARDS)


def test_reinforce_pp_is_the_reference_s():
    estimate = reinforce_pp(REWARDS, MASK, 0.97)
    _assert_close(estimate.returns, "ret/reinforce_pp")
    _assert_close(estimate.advantages, "adv/reinforce_pp")


def test_remax_is_the_reference_s():
    estimate = remax(REWARDS, np.full(12, 0.3), MASK)
    _assert_close(estimate.advantages, "adv/remax")


def test_gae_is_the_reference_s_with_and_without_whitening():
    estimate = gae(REWARDS, VALUE, MASK, 0.99, 0.95)
    _assert_close(compiled(masking.whiten)(estimate.advantages, MASK), "adv/gae_whitened")
    np.testing.assert_allclose(estimate.advantages, np.where(MASK, VALUES["adv/gae"], 0), atol=1e-6)
    _assert_close(estimate.returns, "ret/gae")


def test_gae_by_hand():
    """δ₂ = 1 − 0.5 = 0.5; δ₁ = 0.5 · 0.5 − 0.2 = 0.05; A₁ = 0.05 + 0.5 · 0.5 · 0.5 = 0.175."""
    rewards, values = np.array([[0.0, 1.0, 7.0, 7.0]]), np.array([[0.2, 0.5, 9.0, 9.0]])
    estimate = gae(rewards, values, TWO, 0.5, 0.5)
    np.testing.assert_allclose(estimate.advantages, [[0.175, 0.5, 0, 0]])
    np.testing.assert_allclose(estimate.returns, [[0.375, 1.0, 0, 0]])


def test_n_steps_by_hand():
    """R₁ = 1 + ½ · 2 + ¼ · 40 with two steps; from the third on the end is nearer than n."""
    rewards, values = np.array([[1.0, 2.0, 4.0, 8.0]]), np.array([[10.0, 20.0, 40.0, 80.0]])
    mask = np.ones((1, 4), bool)
    estimate = n_step(rewards, values, mask, 0.5, 2)
    np.testing.assert_allclose(estimate.returns, [[12.0, 24.0, 8.0, 8.0]])
    np.testing.assert_allclose(estimate.advantages, [[2.0, 4.0, -32.0, -72.0]])


def test_one_step_is_gae_without_decay_and_many_are_gae_with_all_of_it():
    one, many = (n_step(REWARDS, VALUE, MASK, 0.99, n) for n in (1, 10))
    np.testing.assert_allclose(
        one.advantages, gae(REWARDS, VALUE, MASK, 0.99, 0.0).advantages, atol=1e-6
    )
    np.testing.assert_allclose(
        many.advantages, gae(REWARDS, VALUE, MASK, 0.99, 1.0).advantages, atol=1e-6
    )


def test_tokens_in_between_that_the_policy_did_not_choose_take_no_time():
    rewards, values = np.array([[0.5, 7.0, 1.0, 7.0]]), np.array([[0.2, 9.0, 0.5, 9.0]])
    holed, order = np.array([[True, False, True, False]]), [0, 2, 1, 3]
    for estimate in (
        lambda r, v, m: gae(r, v, m, 0.9, 0.8),
        lambda r, v, m: n_step(r, v, m, 0.9, 2),
        lambda r, v, m: reinforce_pp(r, m, 0.9),
    ):
        apart = estimate(rewards, values, holed)
        together = estimate(rewards[:, order], values[:, order], TWO)
        for ours, theirs in zip(apart, together, strict=True):
            np.testing.assert_allclose(ours[:, order], theirs, atol=1e-6)
            assert ours[0, 1] == 0


def test_returns_of_replies_by_hand_where_a_row_has_two_trajectories():
    """1 + ½ · 2 + ¼ · 4, and 8; prompts, answers and padding earn nothing."""
    mask = np.array([[0, 1, 1, 0, 1, 0, 1, 0, 1, 1, 0]], bool)
    sequences = np.array([[0, 0, 0, 0, 0, 0, 0, 1, 1, 1, -1]], np.int32)
    rewards = np.array([[9.0, 0, 1, 9, 2, 9, 4, 9, 0, 8, 9]])
    of_turns = compiled(returns.of_turns, "count")
    np.testing.assert_array_equal(of_turns(rewards, mask, 0.5, 2, sequences), [3, 8])
    np.testing.assert_array_equal(of_turns(rewards, mask, 1.0, 2, sequences), [7, 8])


@pytest.mark.nightly
@pytest.mark.parametrize("field", ["advantages", "returns"])
def test_sequences_in_one_row_do_not_see_each_other(field):
    value, mask, sequences = packed(VALUE, fill=9.0)
    rewards = at_the_end(VALUES["rewards"], mask, sequences)
    for estimate in (
        lambda r, v, m, s: gae(r, v, m, 0.99, 0.95, s),
        lambda r, v, m, s: n_step(r, v, m, 0.99, 3, s),
        lambda r, v, m, s: reinforce_pp(r, m, 0.97, s),
        lambda r, v, m, s: remax(r, np.arange(12.0), m, s),
    ):
        apart = estimate(REWARDS, VALUE, MASK, None)
        together = estimate(rewards, value, mask, sequences)
        expected, _, _ = packed(getattr(apart, field))
        np.testing.assert_allclose(getattr(together, field), expected, atol=1e-6)
