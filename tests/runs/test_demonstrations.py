"""A run without explorers, which learns from demonstrations alone."""

from __future__ import annotations

import pytest

from rl_sync.records.metrics import read_metrics
from tests.runs.test_dynamic_sampling import EASY

TASK = tuple(f"--config.task.arithmetic.{name}={value}" for name, value in EASY.items())


@pytest.mark.nightly
def test_a_supervised_run_trains_on_demonstrations_alone_and_learns(runs):
    run = runs.get(
        *TASK,
        "--config.algorithm.name=sft",
        "--config.sft.steps=0",
        "--config.optimizer.learning_rate=0.003",
        "--config.trainer.groups_per_step=32",
        "--config.trainer.steps=200",
    )
    assert {path.stem for path in run.workdir.logs.iterdir()} == {"master", "trainer"}
    assert not run.spans(role="explorer")
    before, *_, after = read_metrics(run.workdir, "evaluation")
    assert before["accuracy"] == 0
    assert after["accuracy"] > 0
    losses = [line["loss"] for line in read_metrics(run.workdir, "rl")]
    assert len(losses) == 200
    assert losses[-1] < 0.5 * losses[0]
    assert [len(step["groups"]) for step in run.consumed] == [32] * 200
    assert run.ledger[-1]["leased"] == run.ledger[-1]["trained"] == 0
    assert "Held-out accuracy after SFT" in run.output
    assert "nothing is generated" in run.output
