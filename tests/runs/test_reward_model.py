"""A run that trains a reward model, its export, and the scores that it then gives."""

from __future__ import annotations

import json

import pytest

from rl_sync.records.metrics import read_metrics
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.roles.assembly import wiring
from rl_sync.roles.policy_export import export

FLAGS = (
    "--config.algorithm.name=reward_model",
    "--config.algorithm.entropy_coefficient=0.0",
    "--config.sft.steps=0",
    "--config.task.arithmetic.least_operand=10",
    "--config.task.arithmetic.greatest_operand=30",
    "--config.optimizer.learning_rate=0.001",
    "--config.optimizer.updates_per_batch=1",
    "--config.trainer.groups_per_step=32",
    "--config.trainer.steps=150",
)


@pytest.mark.nightly
def test_a_reward_model_is_trained_exported_and_prefers_what_is_right(runs, tmp_path):
    run = runs.get(*FLAGS)
    assert not run.spans(role="explorer")
    before, *_, after = read_metrics(run.workdir, "evaluation")
    assert before["problems"] == after["problems"] == 32
    assert 0.1 < before["accuracy"] < 0.9
    lines = read_metrics(run.workdir, "rl")
    losses = [line["loss"] for line in lines]
    assert sum(losses[-20:]) < 0.9 * sum(losses[:20])
    pairs_right = [line["pair_accuracy"] for line in lines]
    assert sum(pairs_right[-20:]) / 20 > max(0.68, sum(pairs_right[:20]) / 20 + 0.08)
    assert "Held-out accuracy after training" in run.output
    assert "learns from the task's pairs of completions" in run.output

    target = tmp_path / "model"
    assert export(run.workdir.path, target, None) == 150
    notes = json.loads((target / "reward_model.json").read_text())
    assert notes["accuracy"] == after["accuracy"]
    task = wiring.load_task(run.settings)
    pairs = task.held_out_preferences[:32]
    items = [
        ScoringRequest(pair.prompt.fields, Completion(text))
        for pair in pairs
        for text in (pair.chosen, pair.rejected)
    ]
    scores = [one.score for one in Rubric(f"reward_model(path={str(target)!r})").judge(items)]
    right = sum(a > b for a, b in zip(scores[::2], scores[1::2], strict=True))
    assert abs(right / 32 - after["accuracy"]) < 0.04  # Of two programs, one pair may be a tie.
    mean = sum(scores) / len(scores)
    spread = (sum((score - mean) ** 2 for score in scores) / len(scores)) ** 0.5
    assert abs(mean) < 1e-3
    assert abs(spread - 1) < 1e-3
