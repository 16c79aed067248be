"""Runs of a mixture of experts whose trainer replays the explorers' routes."""

from __future__ import annotations

import pytest

from rl_sync.records.metrics import read_metrics
from tests.runs.conftest import EMBEDDED

MIXTURE = (
    "--config.model.experts.count=8",
    "--config.rollout.routing_replay=true",
    "--config.sync.mode=synchronous",
    "--config.trainer.steps=3",
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((EMBEDDED, "--config.trainer.batching=packed"), marks=pytest.mark.gate),
        pytest.param((), marks=pytest.mark.nightly),  # Over Reverb.
        pytest.param(
            (
                EMBEDDED,
                "--config.trainer.batching=shared",
                "--config.trainer.mesh.experts=2",
                "--config.trainer.mesh.context=2",
                "--config.explorer.mesh.tensor=2",
            ),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["packed", "reverb", "meshes"],
)
def test_a_run_replays_what_explorers_recorded(runs, flags):
    run = runs.get(*MIXTURE, *flags)
    gaps = [line["logprob_gap"] for line in read_metrics(run.workdir, "rl")]
    assert len(gaps) == 3
    assert max(gaps) < 1e-5
