"""Training in float16: gradients neither vanish nor overflow."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.checkpoints.snapshot_folder import SnapshotFolder
from rl_sync.learning.learning_settings import CriticConfig
from rl_sync.learning.loss_scale import LossScale, first_scale, next_scale, without_overflows
from rl_sync.learning.rows.batching import Batching
from rl_sync.models.placement import move
from rl_sync.types import Demonstrations
from tests.models import tiny
from tests.models.meshes import layout
from tests.roles.trainer import test_reward_trainer, test_trainer_on_meshes
from tests.roles.trainer.training import (
    ALGORITHM,
    MODEL,
    PARAMS,
    TWICE,
    UNEVEN,
    batch_of,
    state_of,
    trainer_of,
)

HALF = dataclasses.replace(MODEL, dtype="float16")
PLAIN = {"name": "sgd", "b1": 0.0}
RATE = 1e4


def scaled(state, scale, finite_updates=0):
    """Returns a state whose loss has another scale."""
    count = jnp.int32(finite_updates)
    return state._replace(loss_scale=LossScale(jnp.float32(scale), count, jnp.int32(0)))


def gradient_of(model, rewards, scale=None):
    """Returns the gradient of one update, as one vector."""
    trainer = trainer_of(optimizer={**PLAIN, "learning_rate": RATE}, model=model, microbatch_rows=4)
    state = state_of(trainer)
    state = state if scale is None else scaled(state, scale)
    after, metrics = trainer.step(state, batch_of(UNEVEN)._replace(rewards=rewards))
    assert (metrics["skipped_updates"], metrics.get("loss_scale_skips", 0)) == (0, 0)
    moved = jax.tree.map(lambda a, b: (b - a).ravel() / RATE, after.params, PARAMS)
    return np.concatenate(jax.tree.leaves(moved)), metrics


@pytest.mark.nightly
def test_small_gradients_vanish_in_float16_unless_the_loss_is_scaled():
    rewards = 1e-5 * batch_of(UNEVEN).rewards
    expected, _ = gradient_of(MODEL, rewards)
    lost, _ = gradient_of(HALF, rewards, scale=1)
    found, metrics = gradient_of(HALF, rewards)
    size = np.linalg.norm(expected)
    assert np.linalg.norm(lost - expected) > 0.1 * size
    assert np.linalg.norm(found - expected) < 0.01 * size
    assert metrics["loss_scale"] == 2**15


def same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.nightly
def test_a_gradient_that_overflows_halves_the_scale_and_the_run_goes_on():
    trainer, batch = trainer_of(optimizer=TWICE, model=HALF), batch_of(UNEVEN, updates=2)
    state, metrics = trainer.step(scaled(state_of(trainer), 2.0**40), batch)
    assert (metrics["loss_scale"], metrics["loss_scale_skips"]) == (2.0**38, 2)
    assert (metrics["skipped_updates"], metrics["skipped_at_end"]) == (0, 0)
    assert state.loss_scale.finite_updates == 0
    before = state_of(trainer)
    same((state.params, state.opt_state), (before.params, before.opt_state))
    while metrics["loss_scale_skips"] == 2 * state.step:
        state, metrics = trainer.step(state, batch)
    assert np.isfinite(metrics["gradient_norm"])
    assert 2**15 <= metrics["loss_scale"] < 2.0**38
    assert state.opt_state[1][0].count == 2 * state.step - metrics["loss_scale_skips"] > 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


@pytest.mark.nightly
@pytest.mark.parametrize(("factor", "scale"), [(np.nan, 2**15), (1e9, 1)])
def test_an_update_that_no_scale_could_save_counts_as_skipped(factor, scale):
    """Its loss is not finite, or its gradient is too large as it is."""
    trainer, batch = trainer_of(model=HALF), batch_of(UNEVEN)
    state = scaled(state_of(trainer), scale)
    _, metrics = trainer.step(state, batch._replace(rewards=factor * batch.rewards))
    assert (metrics["skipped_updates"], metrics["loss_scale_skips"]) == (1, 0)
    assert metrics["loss_scale"] == scale


@pytest.mark.parametrize(
    ("before", "has_loss", "has_gradient", "after"),
    [
        ((8, 5, 2), True, True, (8, 6, 2)),
        ((8, 1999, 2), True, True, (16, 0, 2)),
        ((2.0**127, 1999, 2), True, True, (2.0**127, 0, 2)),
        ((8, 5, 2), True, False, (4, 0, 3)),
        ((1.5, 5, 2), True, False, (1, 0, 3)),
        ((1, 5, 2), True, False, (1, 5, 2)),
        ((8, 5, 2), False, False, (8, 5, 2)),
        ((8, 1999, 2), False, True, (8, 1999, 2)),
    ],
)
def test_the_scale_follows_the_gradients(before, has_loss, has_gradient, after):
    scale = LossScale(jnp.float32(before[0]), jnp.int32(before[1]), jnp.int32(before[2]))
    found, overflows = next_scale(scale, jnp.array(has_loss), jnp.array(has_gradient))
    assert found == after
    assert overflows == (after[2] > before[2])


def test_norms_of_gradients_that_overflowed_are_left_out_of_the_means():
    norms = jnp.array([jnp.inf, 1.0, 3.0])
    overflows = jnp.array([True, False, False])
    found = without_overflows({"gradient_norm": norms, "loss": norms, "overflows": overflows})
    assert found.keys() == {"gradient_norm", "loss"}
    assert found["gradient_norm"].mean() == 2
    assert np.isinf(found["loss"].mean())


@pytest.mark.nightly
def test_other_dtypes_have_no_scale():
    assert first_scale("float32") is first_scale("bfloat16") is None
    trainer = trainer_of()
    after, metrics = trainer.step(state_of(trainer), batch_of(UNEVEN))
    assert after.loss_scale is trainer.abstract().loss_scale is None
    assert not any("loss_scale" in name for name in metrics)


@pytest.mark.nightly
def test_from_a_snapshot_the_same_bits_follow(tmp_path):
    trainer, batch = trainer_of(model=HALF), batch_of(UNEVEN)
    state, _ = trainer.step(scaled(state_of(trainer), 2.0**40, 7), batch)
    SnapshotFolder(tmp_path).save(1, state, {})
    _, restored, _ = SnapshotFolder(tmp_path).load(1, trainer.abstract())
    assert restored.loss_scale == (2.0**39, 0, 1)
    same(trainer.step(restored, batch), trainer.step(state, batch))


@pytest.mark.nightly
def test_sft_in_float16_skips_what_overflows_and_learns_what_does_not():
    trainer, batch = trainer_of(model=HALF), batch_of()
    demonstrations = batch.rows.tokens, batch.rows.completion_mask
    state = scaled(trainer.start(jax.tree.map(jnp.array, PARAMS)), 2.0**40)
    state, metrics = trainer.sft_step(state, *demonstrations)
    assert (metrics["skipped_updates"], metrics["loss_scale_skips"]) == (0, 1)
    same(state.params, PARAMS)
    state = trainer.start(jax.tree.map(jnp.array, PARAMS))
    losses = []
    for _ in range(20):
        state, metrics = trainer.sft_step(state, *demonstrations)
        losses.append(metrics["loss"])
    assert losses[-1] < losses[0] - 0.1
    assert state.loss_scale == (2**15, 20, 0)
    assert trainer.begin(state).loss_scale == (2**15, 0, 0)


def _with_demonstrations():
    trainer = trainer_of(
        {"demonstration_rows": 4, "demonstration_coefficient": 0.5}, model=HALF, microbatch_rows=4
    )
    batch = batch_of(UNEVEN)
    rows = batch.rows.tokens[:4], batch.rows.completion_mask[:4]
    return trainer, state_of(trainer), batch._replace(demonstrations=Demonstrations(*rows))


def _with_critic(kind):
    algorithm = dataclasses.replace(ALGORITHMS["ppo"], allow_unsafe=True)
    critic = CriticConfig(kind, None, 0.5, 0.2, 0)
    trainer = trainer_of(vars(algorithm), model=HALF, critic=critic)
    return trainer, state_of(trainer), batch_of(UNEVEN)


def _of_pairs():
    model = dataclasses.replace(test_reward_trainer.REWARD, dtype="float16")
    trainer = test_reward_trainer._trainer(model=model)
    random = np.random.default_rng(0)
    pairs = [test_reward_trainer._group(random, n) for n in range(test_reward_trainer.PAIRS)]
    batch = Batching("padded", 16, test_reward_trainer.T, 1, 0).batch(pairs)
    return trainer, trainer.begin(trainer.init(jax.random.key(0))), batch


@pytest.mark.nightly
@pytest.mark.samples(gate=("pairs",))
@pytest.mark.parametrize(
    "made",
    [_with_demonstrations, lambda: _with_critic("own"), lambda: _with_critic("head"), _of_pairs],
    ids=["demonstrations", "own critic", "head", "pairs"],
)
def test_every_loss_is_scaled(made):
    trainer, state, batch = made()
    before = jax.tree.map(np.asarray, (state.params, state.critic))
    after, metrics = trainer.step(scaled(state, 2.0**100), batch)
    assert metrics["skipped_updates"] == 0
    assert metrics["loss_scale_skips"] == trainer.optimizer.updates_per_batch
    same((after.params, after.critic), before)
    _, state, _ = made()
    after, metrics = trainer.step(state, batch)
    assert (metrics["skipped_updates"], metrics["loss_scale_skips"]) == (0, 0)
    changed = jax.tree.map(np.array_equal, (after.params, after.critic), before)
    assert not all(jax.tree.leaves(changed[0]))


@pytest.mark.nightly
@pytest.mark.parametrize("sizes", [{"data": 2, "fsdp": 2}, {"fsdp": 2, "tensor": 2}])
def test_four_devices_scale_as_one_does(sizes):
    model = dataclasses.replace(test_trainer_on_meshes.SMALL, dtype="float16")
    params = tiny.params(model)
    fields = {
        "model": model,
        "optimizer": dataclasses.replace(
            test_trainer_on_meshes.OPTIMIZER, **PLAIN, **TWICE, learning_rate=0.1
        ),
        "algorithm": ALGORITHM,
        "microbatch_rows": 4,
    }
    batch = batch_of(UNEVEN, updates=2, microbatch_rows=4, params=params, model=model)
    results = []
    for on in (layout(), layout(**sizes)):
        trainer = test_trainer_on_meshes._trainer(on, **fields)
        start = trainer.begin(trainer.start(move(params, trainer.abstract().params)))
        taken = trainer.step(start, trainer.place(batch))
        start = trainer.begin(trainer.start(move(params, trainer.abstract().params)))
        high = LossScale(*(jnp.float32(2.0**60), jnp.int32(3), jnp.int32(0)))
        high = move(high, trainer.abstract().loss_scale)
        results.append((*taken, *trainer.step(start._replace(loss_scale=high), batch)))
    (one, one_metrics, one_high, _), (four, metrics, four_high, _) = results
    for state in (one, four):
        assert state.loss_scale == (2**15, 2, 0)
    for state in (one_high, four_high):
        assert state.loss_scale == (2.0**58, 0, 2)
    same(four_high.params, params)
    np.testing.assert_allclose(metrics["loss"], one_metrics["loss"], atol=2e-3)
    moved = jax.tree.map(
        lambda a, b: np.abs(np.asarray(a) - np.asarray(b)).max(), one.params, params
    )
    assert min(jax.tree.leaves(moved)) > 1e-4
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), four.params, one.params)
