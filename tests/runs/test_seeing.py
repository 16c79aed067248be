"""Policies that see train in every mode; groups carry their images once, as pixels or features."""

from __future__ import annotations

import itertools

import pytest

from rl_sync.records.metrics import read_metrics
from rl_sync.roles.assembly import wiring

SEEING = (
    "--config.task.name=digits",
    "--config.model.vision.image_size=16",
    "--config.task.digits.side_pixels=16",
    "--config.model.vision.tile_tokens=4",
    "--config.model.vision.num_layers=1",
    "--config.evaluation.problems=16",
    "--config.replay.backend=embedded",
    "--config.trainer.steps=4",
)
FROZEN = ("--config.model.vision.trains_tower=false",)
SMALL_FEATURES = ("--config.model.vision.embed_dim=16", *FROZEN)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mode", "more"),
    [
        pytest.param("synchronous", (), id="synchronous with pixels"),
        pytest.param("synchronous", SMALL_FEATURES, id="synchronous with features"),
        pytest.param(
            "one_step_off_policy",
            ("--config.trainer.batching=shared", "--config.trainer.microbatch_rows=2"),
            id="one step off, shared prompts in microbatches",
        ),
        pytest.param(
            "asynchronous",
            ("--config.sync.delta=on", "--config.rollout.cache_bytes=4000000"),
            id="asynchronous, deltas and pages",
        ),
        pytest.param(
            "multi_explorer",
            ("--config.trainer.batching=packed", "--config.explorer.count=2"),
            id="two explorers, packed rows",
        ),
    ],
)
def test_a_policy_that_sees_trains(runs, mode, more):
    run = runs.get(f"--config.sync.mode={mode}", *SEEING, *more)
    assert [step["step"] for step in run.consumed] == [1, 2, 3, 4]
    used = set(itertools.chain.from_iterable(run.versions(step) for step in run.consumed))
    assert max(used) > 0, "no version was ever pulled"
    task = wiring.load_task(run.settings)
    assert task.processor is not None
    assert wiring.sends_features(run.settings, task) is (more == SMALL_FEATURES)
    if mode == "synchronous":
        gaps = [line["logprob_gap"] for line in read_metrics(run.workdir, "rl")]
        assert max(gaps) < 1e-4, "both see the same"
