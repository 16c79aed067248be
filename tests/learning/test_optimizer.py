import dataclasses
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_sync.learning.learning_settings import OptimizerName, RateSchedule, SftConfig
from rl_sync.learning.opt_state import updates_taken
from rl_sync.learning.optimizer import (
    OPTIMIZERS,
    SCHEDULES,
    rl_optimizer,
    rl_rate,
    sft_optimizer,
)
from tests.roles.trainer.tiny import OPTIMIZER

CONFIG = dataclasses.replace(OPTIMIZER, learning_rate=0.4)
SFT = SftConfig(steps=4, learning_rate=0.2, schedule="constant")


def test_every_name_that_a_config_may_give_has_its_function():
    assert get_args(OptimizerName) == tuple(OPTIMIZERS)
    assert get_args(RateSchedule) == tuple(SCHEDULES)


def _moved(transformation, updates, start=0.0):
    """Returns a weight's move in each update under a constant gradient; Adam's is the rate."""
    params = jnp.full(1, start)
    state, steps = transformation.init(params), []
    for _ in range(updates):
        update, state = transformation.update(jnp.ones(1), state, params)
        steps.append(float(-update[0]))
    return steps


def _rl(updates, **fields):
    return _moved(rl_optimizer(dataclasses.replace(CONFIG, **fields), updates), updates)


@pytest.mark.nightly
def test_the_warmup_gives_each_update_its_share_and_no_update_is_lost():
    np.testing.assert_allclose(_rl(6, warmup_updates=4), [0.1, 0.2, 0.3, 0.4, 0.4, 0.4], rtol=1e-4)
    np.testing.assert_allclose(_rl(3), [0.4] * 3, rtol=1e-4)


def test_the_linear_schedule_falls_after_the_warmup_to_its_share_at_the_end_of_the_run():
    fields = {"schedule": "linear", "warmup_updates": 3}
    warmup = [0.4 / 3, 0.8 / 3]
    np.testing.assert_allclose(_rl(6, **fields), [*warmup, 0.4, 0.3, 0.2, 0.1], rtol=1e-4)
    np.testing.assert_allclose(_rl(4, **fields, final_share=0.5), [*warmup, 0.4, 0.3], rtol=1e-4)


def test_the_cosine_schedule_falls_as_half_a_cosine():
    expected = 0.2 * (1 + np.cos(np.pi * np.arange(4) / 4))
    np.testing.assert_allclose(_rl(4, schedule="cosine"), expected, rtol=1e-4)


def test_a_run_that_is_shorter_than_its_warmup_is_all_warmup():
    np.testing.assert_allclose(_rl(2, schedule="linear", warmup_updates=4), [0.1, 0.2], rtol=1e-4)


def test_sft_has_a_rate_and_a_schedule_of_its_own():
    config = dataclasses.replace(CONFIG, schedule="linear", final_share=0.5)
    np.testing.assert_allclose(_moved(sft_optimizer(config, SFT), 4), [0.2] * 4, rtol=1e-4)
    cooled = dataclasses.replace(SFT, schedule="cosine")
    expected = 0.1 * (1 + np.cos(np.pi * np.arange(4) / 4))
    np.testing.assert_allclose(_moved(sft_optimizer(config, cooled), 4), expected, rtol=1e-4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_every_optimizer_tells_the_rate_of_the_next_update(name):
    config = dataclasses.replace(CONFIG, name=name, schedule="linear", b1=0.9)
    transformation, params = rl_optimizer(config, 4), jnp.ones(1)
    state, rates = transformation.init(params), []
    for _ in range(4):
        rates.append(float(rl_rate(config, 4)(updates_taken(state))))
        _, state = transformation.update(params, state, params)
    np.testing.assert_allclose(rates, [0.4, 0.3, 0.2, 0.1], rtol=1e-5)


def test_gradients_are_clipped_before_the_optimizer_sees_them():
    sgd = dataclasses.replace(CONFIG, name="sgd", b1=0.0, max_gradient_norm=0.5)
    np.testing.assert_allclose(_moved(rl_optimizer(sgd, 2), 2), [0.2, 0.2], rtol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_the_one_of_optax(name):
    config = dataclasses.replace(CONFIG, name=name, max_gradient_norm=10.0)
    theirs = {
        "adamw": optax.adamw(0.4, b1=0.9, b2=0.95, weight_decay=0.0),
        "adam": optax.adam(0.4, b1=0.9, b2=0.95),
        "sgd": optax.sgd(0.4, momentum=0.9),
        "adafactor": optax.adafactor(0.4),
        "lion": optax.lion(0.4, b1=0.9, b2=0.95, weight_decay=0.0),
    }
    mine = _moved(rl_optimizer(config, 3), 3, start=1.0)
    np.testing.assert_allclose(mine, _moved(theirs[name], 3, start=1.0), rtol=1e-5)


def test_weight_decay_pulls_weights_to_zero():
    decaying = dataclasses.replace(CONFIG, weight_decay=0.5)
    without = _moved(rl_optimizer(CONFIG, 1), 1, start=2.0)
    (step,) = _moved(rl_optimizer(decaying, 1), 1, start=2.0)
    np.testing.assert_allclose(step - without[0], 0.4 * 0.5 * 2.0, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - {"adafactor"}))
def test_the_first_moment_may_be_kept_in_bfloat16(name):
    config = dataclasses.replace(
        CONFIG, name=name, max_gradient_norm=10.0, momentum_dtype="bfloat16"
    )
    params = jnp.linspace(-1.0, 1.0, 8)
    state = rl_optimizer(config, 3).init(params)
    kept = [str(x.dtype) for x in jax.tree.leaves(state) if x.shape == params.shape]
    assert kept.count("bfloat16") == 1
    exact = _moved(rl_optimizer(dataclasses.replace(config, momentum_dtype="float32"), 5), 5)
    np.testing.assert_allclose(_moved(rl_optimizer(config, 5), 5), exact, rtol=0.01)
