"""A whole run whose episodes are played by a program that knows nothing of it."""

import json
import sys

import pytest

from rl_sync.observe.metrics import read_metrics
from tests.runs.conftest import EMBEDDED, flags

AGENT = (
    EMBEDDED,
    *flags("one_step_off_policy", steps=3),
    f"--config.environment.name=agent(command='{sys.executable} tests/runs/agent.py')",
    "--config.environment.max_tokens=48",
    "--config.task.max_completion_tokens=3",
    "--config.warm_up.steps=0",
    "--config.evaluation.problems=4",
    "--config.trainer.groups_per_step=4",
    "--config.reward.record=all",
)


@pytest.mark.slow
def test_a_run_learns_from_the_conversations_and_the_outcomes_of_an_agent(runs):
    run = runs.get(*AGENT)
    steps = read_metrics(run.workdir, "rl")
    assert [step["step"] for step in steps] == [1, 2, 3]
    for step in steps:
        assert step["gradient_norm"] > 0
        assert step["episode/ended/done"] == 1.0
        assert step["reward/unjudged"] == 0.0
        assert step["episode/segments"] == 2.0
        assert step["episode/turns"] == step["episode/asked"] + 1
        assert step["reward/environment"] == step["reward/environment/parity"]
    lines = run.workdir.judgements.read_text().splitlines()
    rewards = [json.loads(line)["episode"]["rewards"]["parity"] for line in lines]
    assert set(rewards) == {0.0, 1.0}
