"""A run whose roles have several devices each."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

from rl_sync.checkpoints.snapshot_folder import SnapshotFolder
from rl_sync.records.metrics import read_metrics
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.build import trainer_of
from tests.models.meshes import layout
from tests.runs.conftest import ROOT

pytestmark = pytest.mark.nightly

MIXTURE = ROOT / "tests" / "data" / "models" / "qwen3_moe"
FLAGS = (
    "--config.replay.backend=embedded",
    "--config.trainer.steps=6",
    "--config.trainer.mesh.fsdp=2",
    "--config.trainer.compute_dtype=bfloat16",
    "--config.explorer.mesh.tensor=4",  # Two devices share a kv head.
    "--config.explorer.dtype=bfloat16",
)


@pytest.mark.parametrize(
    ("mode", "transfer"), [("asynchronous", "checkpoint"), ("one_step_off_policy", "collective")]
)
def test_weights_pass_from_shards_to_other_shards_and_a_snapshot_to_any_mesh(runs, mode, transfer):
    run = runs.get(f"--config.sync.mode={mode}", f"--config.sync.transfer={transfer}", *FLAGS)
    steps = run.consumed
    assert [step["step"] for step in steps] == list(range(1, 7))
    used = set(itertools.chain.from_iterable(run.versions(step) for step in steps))
    assert max(used) > 0, "no version was ever pulled"
    task, states = wiring.load_task(run.settings), []
    for on in (layout(fsdp=2), layout(data=2, tensor=2), layout(tensor=4)):
        abstract = trainer_of(run.settings, task, on).abstract()
        step, state, _ = SnapshotFolder(run.workdir.snapshots).load(None, abstract)
        assert step == 6
        states.append(state)
    for state in states[1:]:
        jax.tree.map(np.testing.assert_array_equal, states[0], state)
    dtypes = {str(x.dtype) for x in jax.tree.leaves(states[0].params)}
    assert dtypes == {"float32"}, "the trainer's own parameters stay float32"


BY_TRANSFER = [
    ("synchronous", "collective"),
    ("one_step_off_policy", "server"),
    ("asynchronous", "checkpoint"),
]


@pytest.mark.parametrize(("mode", "transfer"), BY_TRANSFER)
def test_experts_pass_from_their_devices_to_others(runs, mode, transfer):
    run = runs.get(
        *_by(mode, transfer),
        f"--config.model.path={MIXTURE}",
        "--config.trainer.mesh.experts=2",
        "--config.trainer.mesh.tensor=2",
        "--config.explorer.mesh.experts=2",
        "--config.explorer.mesh.tensor=2",
    )
    _check(run)


def test_quantized_weights_pass_from_three_parts_of_rows_to_divided_pages(runs):
    run = runs.get(
        *_by("one_step_off_policy", "server"),
        "--config.trainer.mesh.context=3",
        "--config.explorer.mesh.tensor=4",
        "--config.explorer.quantization=int8",
        "--config.rollout.cache_bytes=300000",
    )
    _check(run)


@pytest.mark.parametrize(("mode", "transfer"), BY_TRANSFER)
def test_weights_pass_from_devices_with_parts_of_rows_to_others(runs, mode, transfer):
    run = runs.get(
        *_by(mode, transfer),
        "--config.trainer.mesh.context=2",
        "--config.trainer.mesh.fsdp=2",
        "--config.explorer.mesh.tensor=2",
    )
    _check(run)


@pytest.mark.parametrize(("mode", "transfer"), BY_TRANSFER)
def test_weights_pass_to_devices_that_share_the_positions_of_prompts(runs, mode, transfer):
    run = runs.get(
        *_by(mode, transfer),
        "--config.trainer.mesh.context=2",
        "--config.trainer.mesh.fsdp=2",
        "--config.explorer.mesh.context=2",
        "--config.explorer.mesh.tensor=2",
    )
    _check(run)


def _by(mode, transfer):
    return (
        f"--config.sync.mode={mode}",
        f"--config.sync.transfer={transfer}",
        f"--config.sync.delta={'off' if transfer == 'collective' else 'on'}",
        "--config.replay.backend=embedded",
        "--config.trainer.steps=4",
    )


def _check(run):
    assert [step["step"] for step in run.consumed] == [1, 2, 3, 4]
    used = set(itertools.chain.from_iterable(run.versions(step) for step in run.consumed))
    assert max(used) > 0, "no version was ever pulled"
    if run.settings.sync.mode == "synchronous":
        gaps = [line["logprob_gap"] for line in read_metrics(run.workdir, "rl")]
        assert max(gaps) < 1e-3, "both compute the same policy"
