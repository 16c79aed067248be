"""Demonstrations beside rollouts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_sync.learning import demonstration_loss
from rl_sync.learning.optimizer import rl_optimizer
from rl_sync.tasks.demonstrations import draw
from rl_sync.types import Demonstrations
from tests.roles.trainer.tiny import OPTIMIZER
from tests.roles.trainer.training import (
    MODEL,
    PARAMS,
    STEPS,
    UNEVEN,
    assert_close,
    batch_of,
    logprobs_of,
    state_of,
    trainer_of,
)
from tests.tasks.loading import load

TOKENS = jnp.array([[0, 1, 2], [1, 1, 3], [2, 0, 0], [3, 3, 1]])
MASK = jnp.array([[0, 1, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]], bool)


@pytest.mark.gate
@pytest.mark.parametrize("microbatch_rows", [0, 1, 2])
def test_the_mean_is_over_all_tokens_of_demonstrations_and_its_gradient_has_its_share(
    microbatch_rows,
):
    table = jnp.log(jnp.array([0.1, 0.2, 0.3, 0.4]))
    gradients = jnp.array([1.0, 2.0, 3.0, 4.0])
    found, metrics = demonstration_loss.mix_in(
        gradients, lambda table, rows: table[rows.tokens], table, Demonstrations(TOKENS, MASK),
        0.25, microbatch_rows,
    )  # fmt: skip
    counts = np.array([0, 3, 1, 2])
    np.testing.assert_allclose(found, 0.75 * gradients - 0.25 * counts / 6, rtol=1e-6)
    loss = -(counts * table).sum() / 6
    np.testing.assert_allclose(metrics["demonstration_loss"], loss, rtol=1e-6)


@pytest.mark.nightly
def test_a_step_on_demonstrations_alone_takes_their_gradient():
    """With μ = 1, in microbatches: the mean over all their tokens, at temperature 1."""
    trainer = trainer_of(
        {"demonstration_rows": 8, "demonstration_coefficient": 1.0}, microbatch_rows=2
    )
    batch, state = batch_of(UNEVEN), state_of(trainer)
    demonstrations = Demonstrations(batch.rows.tokens[:8], batch.rows.completion_mask[:8])

    def loss_of(params):
        logprobs, _ = logprobs_of(MODEL, params, demonstrations.tokens, 1.0)
        return -jnp.where(demonstrations.mask, logprobs, 0).sum() / demonstrations.mask.sum()

    loss, gradient = jax.jit(jax.value_and_grad(loss_of))(PARAMS)
    transformation = rl_optimizer(OPTIMIZER, STEPS)
    updates, _ = transformation.update(gradient, transformation.init(state.params), state.params)
    expected = optax.apply_updates(PARAMS, updates)
    after, metrics = trainer.step(state, batch._replace(demonstrations=demonstrations))
    np.testing.assert_allclose(metrics["demonstration_loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["gradient_norm"], optax.tree.norm(gradient), rtol=1e-4)
    assert_close(after.params, expected, atol=1e-4)


def test_the_demonstrations_depend_on_the_seed_and_the_step():
    task = load(arithmetic__held_out_problems=9)
    rows = [draw(task, 4, words).tokens.tolist() for words in ([0, 1], [0, 1], [0, 2], [1, 1])]
    assert rows[0] == rows[1] != rows[2] != rows[3] != rows[0]
