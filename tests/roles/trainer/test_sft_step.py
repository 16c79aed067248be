"""Supervised steps before RL."""

import jax
import numpy as np
import pytest

from rl_sync.learning.rows.batching import lay_out
from rl_sync.types import Demonstrations
from tests.roles.trainer.training import assert_close, batch_of, fresh_state_of, trainer_of


@pytest.mark.gate
def test_sft_learns_the_demonstrations_and_counts_no_step():
    trainer = trainer_of()
    state, batch = fresh_state_of(trainer), batch_of()
    demonstrations = batch.rows.tokens[:4], batch.rows.completion_mask[:4]
    state, first = trainer.sft_step(state, *demonstrations)
    np.testing.assert_allclose(first["loss"], np.log(7), atol=1.0)
    for _ in range(150):
        state, last = trainer.sft_step(state, *demonstrations)
    assert last["loss"] < 0.3 * first["loss"]
    assert int(state.step) == 0


@pytest.mark.gate
def test_sft_step_that_is_not_finite_changes_nothing():
    trainer, batch = trainer_of(), batch_of()
    before = [fresh_state_of(trainer) for _ in range(2)]
    for state in before:
        state.params["final_norm"]["scale"] *= 1e38
    state, metrics = trainer.sft_step(before[0], batch.rows.tokens, batch.rows.completion_mask)
    assert metrics["skipped_updates"] == 1
    jax.tree.map(np.testing.assert_array_equal, state, before[1])


@pytest.mark.nightly
def test_packing_demonstrations_does_not_change_sft():
    trainer, batch = trainer_of(), batch_of((1, 2, 6, 1, 3, 2, 1, 4))
    demonstrations = Demonstrations(batch.rows.tokens, batch.rows.completion_mask)
    packed = lay_out(demonstrations, "packed")
    assert packed.tokens.shape[0] < 8
    state, metrics = trainer.sft_step(fresh_state_of(trainer), *demonstrations)
    other, other_metrics = trainer.sft_step(fresh_state_of(trainer), *packed)
    np.testing.assert_allclose(other_metrics["loss"], metrics["loss"], rtol=1e-5)
    assert_close(state.params, other.params, atol=1e-4)


@pytest.mark.gate
def test_rl_starts_with_a_fresh_optimizer():
    trainer = trainer_of()
    state, batch = fresh_state_of(trainer), batch_of()
    state, _ = trainer.sft_step(state, batch.rows.tokens, batch.rows.completion_mask)
    moments = trainer.begin(state).opt_state
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(moments))
