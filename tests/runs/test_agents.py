"""A whole run whose episodes are played by a program that knows nothing of it."""

import sys

import pytest

from rl_sync.records.metrics import read_metrics
from rl_sync.records.rollouts.rollout_records import read_rollouts
from tests.runs.conftest import EMBEDDED, flags

AGENT = (
    EMBEDDED,
    *flags("one_step_off_policy", steps=3),
    f"--config.environment.name=agent(command='{sys.executable} tests/runs/agent.py')",
    "--config.environment.max_tokens=48",
    "--config.task.max_completion_tokens=3",
    "--config.sft.steps=0",
    "--config.evaluation.problems=4",
    "--config.trainer.groups_per_step=4",
    "--config.reward.record=all",
)


@pytest.mark.nightly
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
    rewards = [one["episode"]["rewards"]["parity"] for one in run.judged]
    assert set(rewards) == {0.0, 1.0}


CLIENTS = (
    EMBEDDED,
    "--config.environment.max_tokens=96",
    "--config.environment.limit_secs=120",
    "--config.environment.workers=4",
    "--config.task.max_completion_tokens=3",
    "--config.sft.steps=0",
    "--config.evaluation.problems=2",
    "--config.trainer.groups_per_step=4",
    "--config.trainer.group_size=2",
    "--config.reward.record=all",
)


every_mode = pytest.mark.parametrize(
    "mode", ["synchronous", "one_step_off_policy", "asynchronous", "multi_explorer"]
)


def mode_flags(mode):
    several = {"count": 2} if mode == "multi_explorer" else {}
    return flags(mode, steps=2, **several)


@pytest.mark.nightly
@pytest.mark.parametrize(("segment_returns", "ends"), [(True, 5), (False, 1)])
def test_the_outcome_stands_at_the_end_of_each_conversation_or_of_the_last(
    memory_runs, segment_returns, ends
):
    run = memory_runs(
        *CLIENTS,
        *flags("synchronous", steps=1),
        "--config.environment.name=agent(function='tests/runs/clients.py:fan_out')",
        "--config.algorithm.name=reinforce_pp",
        "--config.algorithm.discount=0.5",
        "--config.algorithm.kl_coefficient=0.0",
        f"--config.algorithm.segment_returns={segment_returns}",
    )
    for one in read_rollouts(run.workdir):
        found = [given for given in one.token_advantages if given is not None]
        assert one.reward > 0
        assert found.count(max(found)) == ends


@pytest.mark.nightly
@every_mode
def test_a_run_learns_from_an_agent_that_asks_several_things_at_once(runs, mode):
    run = runs.get(
        *CLIENTS,
        *mode_flags(mode),
        "--config.environment.name=agent(function='tests/runs/clients.py:fan_out')",
    )
    steps = read_metrics(run.workdir, "rl")
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        # Three helpers, two drafts, and what follows one of these in its segment.
        assert (step["episode/turns"], step["episode/segments"]) == (6.0, 5.0)
        assert step["episode/ended/done"] == 1.0
        assert step["logprob_gap"] < 1e-3 or mode != "synchronous"


@pytest.mark.nightly
@every_mode
def test_a_run_learns_from_an_agent_of_anthropic(runs, mode):
    run = runs.get(
        *CLIENTS,
        *mode_flags(mode),
        "--config.environment.name=agent(function='tests/runs/clients.py:with_anthropic')",
    )
    steps = read_metrics(run.workdir, "rl")
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        assert (step["episode/turns"], step["episode/segments"]) == (2.0, 1.0)
        assert step["episode/ended/done"] == 1.0
        assert step["reward/unjudged"] == 0.0


@pytest.mark.nightly
@every_mode
def test_a_run_learns_from_an_agent_of_the_agents_sdk(runs, mode):
    pytest.importorskip("agents", reason="needs the Agents SDK: pip install openai-agents")
    run = runs.get(
        *CLIENTS,
        *mode_flags(mode),
        "--config.environment.name=agent(function='tests/runs/clients.py:sdk')",
    )
    steps = read_metrics(run.workdir, "rl")
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        assert (step["episode/turns"], step["episode/segments"]) == (2.0, 1.0)
        assert step["episode/ended/done"] == 1.0


@pytest.mark.nightly
@every_mode
def test_a_run_learns_from_an_agent_of_the_agents_sdk_over_responses(runs, mode):
    pytest.importorskip("agents", reason="needs the Agents SDK: pip install openai-agents")
    run = runs.get(
        *CLIENTS,
        *mode_flags(mode),
        "--config.environment.name=agent(function='tests/runs/clients.py:sdk_with_responses')",
    )
    steps = read_metrics(run.workdir, "rl")
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        assert 1.0 <= step["episode/turns"] <= 2.0
        assert step["episode/segments"] == 1.0
        assert step["episode/ended/done"] == 1.0
        assert step["reward/unjudged"] == 0.0
        assert step["gradient_norm"] > 0
