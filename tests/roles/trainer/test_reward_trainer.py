"""The trainer of a reward model: it learns to prefer, on any layout, with adapters or without."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.learning.learning_settings import OptimizerConfig, SftConfig
from rl_sync.learning.rows.batching import Batching
from rl_sync.models import heads
from rl_sync.models.config import HEAD, Lora
from rl_sync.models.placement import move
from rl_sync.models.transformer import init_params
from rl_sync.roles.trainer.reward_trainer import RewardTrainer
from rl_sync.types import NO_LEASE, Group
from tests.models.meshes import layout
from tests.roles.trainer.test_trainer_on_meshes import SMALL
from tests.roles.trainer.tiny import with_loss

pytestmark = pytest.mark.gate

REWARD = dataclasses.replace(SMALL, scalar_head=True)
PAIRS, T = 8, 8


def _trainer(on=None, model=REWARD, updates=1, **fields):
    optimizer = OptimizerConfig(learning_rate=1e-2, warmup_updates=0, updates_per_batch=updates)
    given = {
        "model": model,
        "algorithm": ALGORITHMS["reward_model"],
        "optimizer": optimizer,
        "group_size": 2,
        "max_completion_tokens": 6,
        "end_ids": (1,),
        "temperature": 1.0,
        "steps": 30,
        "sft": SftConfig(),
        "microbatch_rows": 0,
        "logits_bytes": 256,
        "layout": on or layout(),
    }
    return RewardTrainer(**with_loss({**given, **fields}))


def _group(random, number):
    """Makes a pair: the chosen completion has the token 7, the rejected one has not."""
    tokens, mask = np.zeros((2, T), np.int32), np.zeros((2, T), bool)
    for row in range(2):
        length = int(random.integers(2, 6))
        tokens[row, :2] = random.integers(2, 6, 2)
        tokens[row, 2 : 2 + length] = random.integers(2, 6, length)
        mask[row, 2 : 2 + length] = True
        if row == 0:
            tokens[row, 2 + int(random.integers(length))] = 7
    return Group(
        lease_id=NO_LEASE,
        ordinal=number,
        prompt_id=NO_LEASE,
        explorer=0,
        tokens=tokens,
        completion_mask=mask,
        behavior_logprobs=np.zeros((2, T), np.float32),
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=np.array([0.1 * number, 0.0], np.float32),
    )


def _batch(seed=0, kind="padded", updates=1):
    random = np.random.default_rng(seed)
    made = Batching(kind, 2 * PAIRS, T, updates=updates, microbatch_rows=0)
    return made.batch([_group(random, i) for i in range(PAIRS)])


@functools.cache
def _params(model):
    params = init_params(model, jax.random.key(0))
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(1), x.shape), params)


def _stepped(trainer, batch):
    placed = move(_params(trainer.model), trainer.abstract().params)
    return trainer.step(trainer.begin(trainer.start(placed)), trainer.place(batch))


def _assert_alike(one, other):
    """Compares states and metrics; Adam's first steps magnify the rounding of sums."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), one[0].params, other[0].params
    )
    for name, value in one[1].items():
        np.testing.assert_allclose(other[1][name], value, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.nightly
def test_it_learns_what_was_preferred():
    trainer = _trainer()
    state = trainer.begin(trainer.init(jax.random.key(0)))
    for seed in range(30):
        state, metrics = trainer.step(state, trainer.place(_batch(seed)))
    assert metrics["pair_accuracy"] > 0.9
    assert int(state.step) == 30
    rows = _batch(99).rows
    lengths = T - np.argmax(rows.completion_mask[:, ::-1], axis=1)
    scores = heads.last_scalars(trainer.scalars(state.params, rows.tokens), lengths)
    assert (scores[::2] > scores[1::2]).mean() > 0.9


@pytest.mark.nightly
@pytest.mark.samples("packed-fields1")
@pytest.mark.parametrize(
    ("kind", "fields"), [("padded", {"microbatch_rows": 4}), ("packed", {}), ("bucketed", {})]
)
def test_neither_microbatches_nor_the_layout_change_a_step(kind, fields):
    expected = _stepped(_trainer(updates=2), _batch(updates=2))
    _assert_alike(expected, _stepped(_trainer(updates=2, **fields), _batch(kind=kind, updates=2)))


@pytest.mark.nightly
def test_a_step_on_a_mesh_is_that_on_one_device():
    mesh = layout(fsdp=2, tensor=2)
    _assert_alike(_stepped(_trainer(), _batch()), _stepped(_trainer(mesh), _batch()))


@pytest.mark.nightly
def test_with_adapters_they_and_the_head_alone_are_trained():
    model = dataclasses.replace(REWARD, lora=Lora(2, 4.0))
    before = _params(model)
    (state, _), (again, _) = (_stepped(_trainer(model=model), _batch()) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, state.params, again.params)
    assert np.abs(state.params[HEAD]["kernel"] - before[HEAD]["kernel"]).max() > 1e-3
    np.testing.assert_array_equal(state.params["embedding"], before["embedding"])
    attention = state.params["blocks"]["attention"]
    assert np.abs(attention["qkv_lora"]["q_b"]).max() > 0
    np.testing.assert_array_equal(attention["qkv"], before["blocks"]["attention"]["qkv"])
