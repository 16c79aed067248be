"""A trainer on a mesh does what it does on one device, and no device holds what it should not."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.checkpoints.snapshot_folder import SnapshotFolder
from rl_sync.learning.learning_settings import CriticConfig
from rl_sync.models.config import Experts, Lora, ModelConfig
from rl_sync.models.placement import move
from rl_sync.roles.trainer.actor import Trainer
from tests.models import tiny
from tests.models.meshes import layout
from tests.roles.trainer.tiny import OPTIMIZER, sft, with_loss
from tests.roles.trainer.training import ALGORITHM, UNEVEN, batch_of, comparable

pytestmark = pytest.mark.gate

MODEL = ModelConfig(
    vocab_size=12,
    embed_dim=8,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    mlp_dim=12,
    max_length=8,
)
SMALL = dataclasses.replace(MODEL, num_layers=1)
PARAMS = tiny.params(MODEL)
CASES = {
    "fsdp with microbatches": ({"fsdp": 2}, {"remat": "full"}, {"microbatch_rows": 4}),
    "fsdp, offloaded": (
        {"fsdp": 2},
        {"num_layers": 1},
        {"offload_reference": True, "offload_optimizer": True},
    ),
    "data and tensor": ({"data": 2, "tensor": 2}, {"num_layers": 1}, {}),
    "context": ({"context": 4}, {"num_layers": 1}, {}),
    "context and fsdp with microbatches": (
        {"context": 2, "fsdp": 2},
        {"remat": "full", "sliding_window": 3, "sliding_layers": (True, False)},
        {"microbatch_rows": 4},
    ),
    "context and experts": (
        {"context": 2, "experts": 2},
        {"num_layers": 1, "experts": Experts(4, 2, 6)},
        {},
    ),
    "fsdp and tensor, adapters": (
        {"fsdp": 2, "tensor": 2},
        {"num_layers": 1, "tie_embeddings": False, "lora": Lora(2, 4.0)},
        {},
    ),
}


def _trainer(on, **fields):
    of = {
        "model": MODEL,
        "algorithm": dataclasses.replace(ALGORITHM, kl_coefficient=0.1, refresh_reference_steps=2),
        "optimizer": dataclasses.replace(OPTIMIZER, updates_per_batch=2, weight_decay=0.1),
        "group_size": 4,
        "max_completion_tokens": 6,
        "end_ids": (1,),
        "temperature": 0.8,
        "steps": 3,
        "sft": sft(3),
        "microbatch_rows": 0,
        "logits_bytes": 256,
        "layout": on,
    }
    return Trainer(**with_loss({**of, **fields}))


def _placed(trainer, params):
    """Makes the state at the start of RL from parameters that were drawn elsewhere."""
    return trainer.begin(trainer.start(move(params, trainer.abstract().params)))


@functools.cache
def _on_one_device(model):
    one = _trainer(layout(), model=model)
    return one.step(_placed(one, tiny.params(model)), batch_of(params=PARAMS, model=MODEL))


@pytest.mark.nightly
@pytest.mark.samples(
    gate=(
        "data and tensor",
        "context and fsdp with microbatches",
        "fsdp and tensor, adapters",
    )
)
@pytest.mark.parametrize(("mesh", "model", "fields"), CASES.values(), ids=CASES)
def test_a_step_on_a_mesh_is_that_on_one_device_up_to_rounding(mesh, model, fields):
    model = dataclasses.replace(MODEL, **model)
    params, batch = tiny.params(model), batch_of(params=PARAMS, model=MODEL)
    # Neither microbatches nor what is computed again change what comes out.
    expected, expected_metrics = _on_one_device(dataclasses.replace(model, remat="none"))
    trainer = _trainer(layout(**mesh), model=model, **fields)
    compiled = trainer.compile_step(trainer.abstract(), batch)
    found, metrics = compiled(_placed(trainer, params), batch)
    # Adam divides by the root of a tiny square at first, which magnifies the rounding of sums.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), found.params, expected.params
    )
    for name, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=2e-4, atol=1e-5, err_msg=name)
    assert jax.tree.map(_laid_out, found) == jax.tree.map(_laid_out, trainer.abstract())


def _laid_out(x):
    """Returns shape, dtype, regions by device, and kind of memory of an array."""
    indices = x.sharding.devices_indices_map(x.shape)
    return x.shape, x.dtype, indices, x.sharding.memory_kind


# Those of the slow ones are prepared as `decoupled_ppo` is; only their advantages differ.
DATA_AND_FSDP = {"data": 2, "fsdp": 2}
ON_CONTEXT = {"fsdp": 2, "context": 2}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("ppo", ON_CONTEXT),
        *(
            pytest.param(name, DATA_AND_FSDP, marks=pytest.mark.nightly)
            for name in ("gspo", "decoupled_ppo", "ppo", "grpo", "rloo")
        ),
    ],
)
def test_packed_microbatches_on_a_mesh_are_a_step_like_any_other(name, sizes):
    """Statistics of groups and of the batch, and all means, are those of one device.

    Stale data come from other parameters, so that ratios, clipping and weights matter.
    """
    algorithm = dataclasses.replace(
        ALGORITHMS[name], kl_coefficient=0.1, entropy_coefficient=0.01, allow_unsafe=True
    )
    # Without Adam's first steps, which magnify the rounding of sums.
    plain = {"name": "sgd", "b1": 0.0, "learning_rate": 0.1, "updates_per_batch": 2}
    fields = {
        "model": SMALL,
        "algorithm": algorithm,
        "optimizer": dataclasses.replace(OPTIMIZER, **plain),
        "critic": CriticConfig("own", None, 0.5, 0.2, 0) if algorithm.needs_values else None,
    }
    params = tiny.params(SMALL)
    drawn = {"params": jax.tree.map(lambda x: 0.9 * x, params), "model": SMALL}
    one = _trainer(layout(), **fields)
    mesh = _trainer(layout(**sizes), microbatch_rows=4, **fields)
    batch = batch_of(UNEVEN, "packed", 2, 4, **drawn)
    assert batch.rows.tokens.shape[0] == 16
    assert (batch.rows.packing.trajectories < 0).all(axis=1).any(), "rows of nothing but padding"
    expected, expected_metrics = one.step(_placed(one, params), batch_of(UNEVEN, **drawn))
    found, metrics = mesh.compile_step(mesh.abstract(), batch)(_placed(mesh, params), batch)
    metrics = comparable(metrics, batch)
    expected_metrics = comparable(expected_metrics, batch_of(UNEVEN, **drawn))
    assert ("token_advantages" in metrics) == ALGORITHMS[name].needs_values
    for key, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[key], value, rtol=1e-3, atol=1e-5, err_msg=key)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), expected.params, params)
    assert min(jax.tree.leaves(moved)) > 1e-4
    for part in ("params", "critic"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
            getattr(found, part),
            getattr(expected, part),
        )


def test_what_is_offloaded_is_in_the_host_s_memory_and_comes_back_there(tmp_path):
    fields = {"offload_reference": True, "offload_optimizer": True}
    trainer = _trainer(layout(fsdp=2), **fields)
    warming = trainer.start(move(PARAMS, trainer.abstract().params))
    assert {x.sharding.memory_kind for x in jax.tree.leaves(warming.opt_state[1][0].mu)} == {
        "pinned_host"
    }
    assert jax.tree.map(_laid_out, warming) == jax.tree.map(_laid_out, trainer.abstract_sft_state())
    state = trainer.begin(warming)
    for tree in (state.ref_params, state.opt_state[1][0].mu, state.opt_state[1][0].nu):
        assert {x.sharding.memory_kind for x in jax.tree.leaves(tree)} == {"pinned_host"}
    assert {x.sharding.memory_kind for x in jax.tree.leaves(state.params)} == {"device"}
    SnapshotFolder(tmp_path).save(0, state, {})
    _, found, _ = SnapshotFolder(tmp_path).load(0, trainer.abstract())
    jax.tree.map(np.testing.assert_array_equal, found, state)
    assert jax.tree.map(_laid_out, found) == jax.tree.map(_laid_out, state)


def test_a_mesh_draws_what_one_device_draws_and_no_device_holds_what_is_cut():
    trainer = _trainer(layout(fsdp=2, tensor=2))
    state = trainer.begin(trainer.init(jax.random.key(3)))
    expected = _trainer(layout()).init(jax.random.key(3)).params
    jax.tree.map(np.testing.assert_array_equal, state.params, expected)
    moments = [state.opt_state, state.ref_params]
    kept = [[x.shape for x in jax.tree.leaves(tree) if x.ndim] for tree in moments]
    params = [x.shape for x in jax.tree.leaves(state.params)]
    assert kept == [params + params, params], "AdamW's moments, and the reference"
    for tree in (state.params, state.ref_params, state.opt_state):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            scale = "scale" in jax.tree_util.keystr(path)
            parts = 1 if not leaf.ndim else 2 if scale else 4
            sizes = {shard.data.size for shard in leaf.addressable_shards}
            assert sizes == {leaf.size // parts}, jax.tree_util.keystr(path)


@pytest.mark.nightly
def test_sft_step_on_a_mesh_is_that_on_one_device_up_to_rounding():
    batch = batch_of(params=PARAMS, model=MODEL)
    results = []
    for trainer in (_trainer(layout()), _trainer(layout(data=2, fsdp=2))):
        state = trainer.start(move(PARAMS, trainer.abstract().params))
        results.append(trainer.sft_step(state, batch.rows.tokens, batch.rows.completion_mask))
    (expected, expected_metrics), (found, metrics) = results
    np.testing.assert_allclose(metrics["loss"], expected_metrics["loss"], rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), found.params, expected.params
    )
    expected = jax.tree.map(_laid_out, trainer.start(found.params))
    assert jax.tree.map(_laid_out, found) == expected, "or the next step compiles again"


def test_every_device_has_all_rewards_and_baselines():
    batch = batch_of()
    parts = np.stack([batch.rewards, batch.rewards], axis=1)
    whole = batch._replace(baselines=batch.rewards, parts=parts)
    placed = _trainer(layout(fsdp=2)).place(whole)
    assert placed.rewards.sharding.is_fully_replicated
    assert placed.baselines.sharding.is_fully_replicated
    assert placed.parts.sharding.is_fully_replicated
    assert not placed.rows.tokens.sharding.is_fully_replicated
