"""The strength with which the reference model holds the policy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.learning import reference
from rl_sync.learning.train_state import TrainState
from rl_sync.models.sharding import Layout
from tests.roles.trainer.training import PARAMS, batch_of, state_of, trainer_of

ADAPTIVE = {"kl_coefficient": 0.5, "kl_target": 0.1, "kl_horizon_steps": 2.0}
ALGORITHM = dataclasses.replace(ALGORITHMS["grpo"], **ADAPTIVE)


def _next(kl, learns=True):
    before = TrainState(jnp.int32(0), {}, (), {}, None, jnp.float32(0.5))
    metrics = {"kl_reference": jnp.float32(kl)}
    return reference.next_coefficient(ALGORITHM, before, metrics, jnp.array(learns))


@pytest.mark.parametrize(("kl", "expected"), [(0.1, 0.5), (0.2, 0.55), (0.09, 0.475), (0.0, 0.45)])
def test_the_weight_follows_the_divergence_to_its_target(kl, expected):
    """By at most 20 % in a horizon of 2 steps."""
    np.testing.assert_allclose(_next(kl), expected, rtol=1e-6)


def test_the_weight_stays_while_the_policy_is_held():
    assert _next(5.0, learns=False) == 0.5


@pytest.mark.parametrize("kl", [jnp.nan, jnp.inf])
def test_the_weight_stays_where_the_divergence_is_not_known(kl):
    assert np.isfinite(_next(kl))


def test_a_weight_without_a_target_is_not_in_the_state():
    still = dataclasses.replace(ALGORITHM, kl_target=0.0)
    assert reference.first_coefficient(still, Layout.single()) is None
    state = TrainState(jnp.int32(0), {}, (), {})
    assert reference.next_coefficient(still, state, {}, jnp.array(True)) is None
    assert reference.first_coefficient(ALGORITHM, Layout.single()) == 0.5


def test_a_reference_is_refreshed_after_each_whole_number_of_steps():
    algorithm = dataclasses.replace(ALGORITHMS["grpo"], refresh_reference_steps=3)
    own, trained = {"w": jnp.zeros(2)}, {"w": jnp.ones(2, jnp.bfloat16)}
    for step, due in enumerate((0, 0, 1, 0, 0, 1)):
        before = TrainState(jnp.int32(step), {}, (), own)
        after = reference.refreshed(algorithm, before, trained)
        assert after["w"].dtype == jnp.float32
        np.testing.assert_array_equal(after["w"], [due, due])


def _diverged(**change):
    """A trainer, and a state whose policy is not its reference."""
    trainer = trainer_of(ADAPTIVE | change)
    state = state_of(trainer)
    return trainer, state._replace(ref_params=jax.tree.map(lambda x: 0.9 * x, PARAMS))


@pytest.mark.nightly
def test_each_step_has_in_its_loss_the_weight_that_the_one_before_left():
    trainer, state = _diverged(kl_target=1e-9, kl_estimator="k3")
    batch = batch_of()
    for weight in (0.5, 0.55, 0.605):
        state, metrics = trainer.step(state, batch)
        np.testing.assert_allclose(metrics["kl_coefficient"], weight, rtol=1e-5)
        penalty = metrics["loss"] - metrics["policy_loss"]
        np.testing.assert_allclose(penalty, weight * metrics["kl_reference"], rtol=1e-3)
    np.testing.assert_allclose(state.kl_coefficient, 0.6655, rtol=1e-5)
    assert trainer.abstract().kl_coefficient.shape == ()


@pytest.mark.gate
def test_a_divergence_in_the_reward_has_the_weight_of_the_state_too():
    """The spread of what a far greater weight takes from the rewards is in proportion to it."""
    trainer, state = _diverged(kl_target=1e9, kl_place="reward", kl_estimator="k2")
    stds = []
    for weight in (1e4, 2e4):
        copy = jax.tree.map(jnp.copy, state)._replace(kl_coefficient=jnp.float32(weight))
        after, metrics = trainer.step(copy, batch_of())
        stds.append(float(metrics["advantage_std"]))
        np.testing.assert_allclose(after.kl_coefficient, 0.9 * weight, rtol=1e-5)
    np.testing.assert_allclose(stds[1] / stds[0], 2, rtol=1e-2)
