"""How strongly the reference model holds the policy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.actors import reference
from rl_sync.actors.train_state import TrainState
from rl_sync.algorithms.named import ALGORITHMS
from tests.actors.test_trainer import PARAMS, _batch, _state, _trainer

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


def test_a_weight_without_a_target_is_not_in_the_state():
    still = dataclasses.replace(ALGORITHM, kl_target=0.0)
    assert reference.first_coefficient(still, None) is None
    state = TrainState(jnp.int32(0), {}, (), {})
    assert reference.next_coefficient(still, state, {}, jnp.array(True)) is None
    assert reference.first_coefficient(ALGORITHM, None) == 0.5


@pytest.mark.parametrize(("place", "target", "factor"), [("loss", 1e-9, 1.1), ("reward", 1e9, 0.9)])
def test_each_step_has_the_weight_that_the_one_before_left(place, target, factor):
    trainer = _trainer(ADAPTIVE | {"kl_target": target, "kl_place": place, "kl_estimator": "k1"})
    batch, weights = _batch(), []
    state = _state(trainer)._replace(ref_params=jax.tree.map(lambda x: 0.9 * x, PARAMS))
    for _ in range(3):
        state, metrics = trainer.step(state, batch)
        weights.append(float(metrics["kl_coefficient"]))
    np.testing.assert_allclose(weights, 0.5 * factor ** np.arange(3), rtol=1e-5)
    np.testing.assert_allclose(state.kl_coefficient, weights[-1] * factor, rtol=1e-5)
    assert trainer.like().kl_coefficient.shape == ()
