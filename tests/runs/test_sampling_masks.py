"""Runs whose sampling settings exclude tokens or change logits: explorers and trainer agree."""

from __future__ import annotations

import pytest

from rl_sync.records.metrics import read_metrics
from tests.runs.conftest import EMBEDDED

SAMPLING = (
    "--config.rollout.top_p=0.8",
    "--config.rollout.top_k=9",
    "--config.rollout.min_p=0.01",
    "--config.rollout.repetition_penalty=1.3",
    "--config.rollout.min_new_tokens=2",
    "--config.rollout.temperature=1.2",
)
SHORT = ("--config.sync.mode=synchronous", "--config.trainer.steps=3", *SAMPLING)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((EMBEDDED, "--config.trainer.batching=packed"), marks=pytest.mark.gate),
        pytest.param((), marks=pytest.mark.nightly),  # Over Reverb.
        pytest.param(
            (EMBEDDED, "--config.rollout.keep_sampling_mask=false"), marks=pytest.mark.nightly
        ),
    ],
)
def test_the_logprobs_of_explorers_and_trainer_are_the_same(runs, flags):
    run = runs.get(*SHORT, *flags)
    gaps = [line["logprob_gap"] for line in read_metrics(run.workdir, "rl")]
    assert len(gaps) == 3
    assert max(gaps) < 1e-5
