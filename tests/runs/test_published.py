"""Transfer of a policy to explorers: only its adapters if it has some, and no critic."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from rl_sync.checkpoints.snapshot_folder import SnapshotFolder
from rl_sync.models import lora
from rl_sync.models.heads import HEAD
from rl_sync.records.metrics import read_metrics
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.build import trainer_of
from rl_sync.roles.assembly.parameters import MergingPuller, parameters_of
from rl_sync.transfers.checkpoint import CheckpointPuller
from tests.models.meshes import layout
from tests.runs.conftest import assert_same_bits, flags

pytestmark = pytest.mark.nightly


def test_adapters_travel_alone_and_with_the_same_bits_over_both_transfers(runs):
    sizes = ("--config.model.lora.rank=2", "--config.model.lora.targets=q,down")
    embedded = "--config.replay.backend=embedded"
    # In one process the explorer reads the trainer's base.
    transfers = ({}, {"colocate": True, "share_devices": True}, {"transfer": "checkpoint"})
    one, shared, other = (
        runs.get(*flags("synchronous", **over), *sizes, embedded) for over in transfers
    )
    assert_same_bits(one, shared)
    assert_same_bits(one, other)
    settings = other.settings
    published = parameters_of(settings, wiring.load_task(settings), layout()).abstract_published()
    assert published == lora.split(published)[0]
    # It refuses versions that hold anything else.
    puller = CheckpointPuller(settings.weights_directory(other.workdir), published, deltas=False)
    version, adapters = puller.pull(at_least=1, timeout_secs=10.0)
    puller.close()
    assert version == settings.trainer.steps - 1
    learned = adapters["blocks"]["attention"]["qkv_lora"]["q_b"]
    assert np.any(np.asarray(learned)), "adapters start at zero, and have not moved"


def test_a_critic_stays_with_the_trainer_and_is_in_its_snapshots(runs):
    run = runs.get(
        *flags("synchronous", transfer="checkpoint"),
        "--config.replay.backend=embedded",
        "--config.algorithm.name=ppo",
        "--config.critic.warmup_steps=1",
        "--config.trainer.offload_reference=True",
        "--config.trainer.offload_optimizer=True",
    )
    settings, task = run.settings, wiring.load_task(run.settings)
    published = parameters_of(settings, task, layout()).abstract_published()
    # It refuses versions that hold anything else.
    puller = CheckpointPuller(settings.weights_directory(run.workdir), published, deltas=False)
    puller.pull(at_least=1, timeout_secs=10.0)
    puller.close()
    abstract = trainer_of(settings, task, layout()).abstract()
    step, state, _ = SnapshotFolder(run.workdir.snapshots).load(None, abstract)
    assert step == settings.trainer.steps
    assert np.any(np.asarray(state.critic.params[HEAD]["kernel"])), "a head starts at zero"
    steps = read_metrics(run.workdir, "rl")
    assert len(steps) == settings.trainer.steps
    for metrics in steps:
        for name in ("value_loss", "value_mean", "critic_gradient_norm", "kl_coefficient"):
            assert np.isfinite(metrics[name]), name


def test_an_explorer_in_turn_lets_go_of_its_weights_before_others_are_merged(runs, monkeypatch):
    pull, counts = MergingPuller.pull, []

    def counted(self, **wanted):
        shape = self._base()["blocks"]["mlp"]["down"].shape if counts else None
        held = [one for one in jax.live_arrays() if one.shape == shape and not one.is_deleted()]
        counts.append(len(held))
        return pull(self, **wanted)

    monkeypatch.setattr(MergingPuller, "pull", counted)
    runs.get(
        *flags("synchronous", colocate=True, share_devices=True, steps=3),
        *("--config.model.lora.rank=2", "--config.replay.backend=embedded"),
        "--config.algorithm.kl_coefficient=0",
    )
    assert len(counts) == 3
    assert set(counts[1:]) == {1}, "the base alone"
