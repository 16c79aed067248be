import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.algorithms import returns
from rl_sync.algorithms.masking import whiten
from tests.algorithms.golden import LENGTHS, MASK, VALUES, packed

REWARDS = np.where(np.arange(10) == LENGTHS[:, None] - 1, VALUES["rewards"][:, None], 0)
VALUE = VALUES["values"]
TWO = jnp.array([[True, True]])


def _assert_close(ours, name):
    np.testing.assert_allclose(np.where(MASK, ours, 0), VALUES[name], atol=1e-6)


def test_rewards_stand_at_the_last_token():
    ours = returns.at_the_end(jnp.asarray(VALUES["rewards"]), jnp.asarray(MASK))
    np.testing.assert_array_equal(ours, REWARDS)


def test_reinforce_pp_is_the_reference_s():
    estimate = returns.reinforce_pp(REWARDS, jnp.asarray(MASK), 0.97)
    _assert_close(estimate.returns, "ret/reinforce_pp")
    _assert_close(estimate.advantages, "adv/reinforce_pp")


def test_remax_is_the_reference_s():
    estimate = returns.remax(REWARDS, jnp.full(12, 0.3), jnp.asarray(MASK))
    _assert_close(estimate.advantages, "adv/remax")


def test_gae_is_the_reference_s_with_and_without_whitening():
    estimate = returns.gae(REWARDS, VALUE, jnp.asarray(MASK), 0.99, 0.95)
    _assert_close(whiten(estimate.advantages, MASK), "adv/gae_whitened")
    np.testing.assert_allclose(estimate.advantages, np.where(MASK, VALUES["adv/gae"], 0), atol=1e-6)
    _assert_close(estimate.returns, "ret/gae")


def test_gae_by_hand():
    """δ₂ = 1 − 0.5 = 0.5; δ₁ = 0.5 · 0.5 − 0.2 = 0.05; A₁ = 0.05 + 0.5 · 0.5 · 0.5 = 0.175."""
    rewards, values = jnp.array([[0.0, 1.0]]), jnp.array([[0.2, 0.5]])
    estimate = returns.gae(rewards, values, TWO, 0.5, 0.5)
    np.testing.assert_allclose(estimate.advantages, [[0.175, 0.5]])
    np.testing.assert_allclose(estimate.returns, [[0.375, 1.0]])


def test_n_steps_by_hand():
    """R₁ = 1 + ½ · 2 + ¼ · 40 with two steps; from the third on the end is nearer than n."""
    rewards, values = jnp.array([[1.0, 2.0, 4.0, 8.0]]), jnp.array([[10.0, 20.0, 40.0, 80.0]])
    mask = jnp.ones((1, 4), bool)
    estimate = returns.n_step(rewards, values, mask, 0.5, 2)
    np.testing.assert_allclose(estimate.returns, [[12.0, 24.0, 8.0, 8.0]])
    np.testing.assert_allclose(estimate.advantages, [[2.0, 4.0, -32.0, -72.0]])


def test_one_step_is_gae_without_decay_and_many_are_gae_with_all_of_it():
    mask = jnp.asarray(MASK)
    one, many = (returns.n_step(REWARDS, VALUE, mask, 0.99, n) for n in (1, 10))
    np.testing.assert_allclose(
        one.advantages, returns.gae(REWARDS, VALUE, mask, 0.99, 0.0).advantages, atol=1e-6
    )
    np.testing.assert_allclose(
        many.advantages, returns.gae(REWARDS, VALUE, mask, 0.99, 1.0).advantages, atol=1e-6
    )


def test_tokens_in_between_that_the_policy_did_not_choose_take_no_time():
    rewards, values = jnp.array([[0.5, 7.0, 1.0]]), jnp.array([[0.2, 9.0, 0.5]])
    holed, whole = jnp.array([[True, False, True]]), slice(None, None, 2)
    for estimate in (
        lambda r, v, m: returns.gae(r, v, m, 0.9, 0.8),
        lambda r, v, m: returns.n_step(r, v, m, 0.9, 2),
        lambda r, v, m: returns.reinforce_pp(r, m, 0.9),
    ):
        apart = estimate(rewards, values, holed)
        together = estimate(rewards[:, whole], values[:, whole], TWO)
        for ours, theirs in zip(apart, together, strict=True):
            np.testing.assert_allclose(ours[:, whole], theirs, atol=1e-6)
            assert ours[0, 1] == 0


@pytest.mark.parametrize("field", ["advantages", "returns"])
def test_sequences_in_one_row_do_not_see_each_other(field):
    value, mask, sequences = packed(VALUE, fill=9.0)
    rewards = returns.at_the_end(jnp.asarray(VALUES["rewards"]), mask, sequences)
    for estimate in (
        lambda r, v, m, s: returns.gae(r, v, m, 0.99, 0.95, s),
        lambda r, v, m, s: returns.n_step(r, v, m, 0.99, 3, s),
        lambda r, v, m, s: returns.reinforce_pp(r, m, 0.97, s),
        lambda r, v, m, s: returns.remax(r, jnp.arange(12.0), m, s),
    ):
        apart = estimate(REWARDS, VALUE, jnp.asarray(MASK), None)
        together = estimate(rewards, value, mask, sequences)
        expected, _, _ = packed(getattr(apart, field))
        np.testing.assert_allclose(getattr(together, field), expected, atol=1e-6)
