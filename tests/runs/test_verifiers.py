"""Whole runs that play tasksets of verifiers, for which uv makes an environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

import pytest
import uv

from rl_sync.records.metrics import read_metrics
from rl_sync.records.rollouts.rollout_records import read_rollouts
from tests.runs import playing
from tests.runs.conftest import EMBEDDED, ROOT, flags, launch
from tests.runs.living import processes_of

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

TASKSETS = ROOT / "tests" / "addons" / "agents" / "tasksets"
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][
    "verifiers"
]
CALL = '<tool_call>{"name": "look", "arguments": {"place": "north"}}</tool_call>'
ROWS = "rl_sync.addons.agents.verifiers_environment:rows"
COMMON = (
    EMBEDDED,
    *flags("one_step_off_policy", colocate=True),
    "--config.environment.limit_secs=300",
    "--config.environment.workers=2",
    "--config.environment.memory_bytes=0",
    "--config.environment.max_tokens=768",
    "--config.task.max_completion_tokens=3",
    "--config.trainer.steps=2",
    "--config.trainer.groups_per_step=2",
    "--config.trainer.group_size=2",
    "--config.evaluation.problems=2",
    "--config.reward.record=all",
    "--config.sft.probe_every_steps=1000",
    "--config.sft.probe_problems=2",
)


@pytest.fixture(name="python", scope="module")
def _python():
    """Returns the command of a Python that has verifiers beside the packages of this one."""
    command = [uv.find_uv_bin(), "run", "--no-project", "--python", sys.executable]
    command += [part for package in PACKAGES for part in ("--with", package)]
    command += ["python"]
    made = subprocess.run([*command, "-c", ""], capture_output=True, text=True, timeout=400)
    if made.returncode:
        pytest.skip(f"uv cannot install verifiers: {made.stderr.strip().splitlines()[-1]}")
    return command


@pytest.fixture(name="arguments")
def _arguments(tmp_path, monkeypatch):
    """Returns what tells a run its tokenizer, taskset and rows."""
    path = os.pathsep.join([str(ROOT), str(TASKSETS)])
    monkeypatch.setenv("PYTHONPATH", path)
    tokenizer = playing.save_tokenizer(tmp_path, [CALL])

    def of(taskset, limit=0):
        return (
            f"--config.tokenizer.path={tokenizer}",
            f"--config.task.name={ROWS}({taskset}, limit={limit})",
            f"--config.environment.name=verifiers({taskset})",
        )

    return of


@pytest.mark.parametrize(
    ("taskset", "limit", "sft_steps", "rewards"),
    [
        ("letters_once", 0, 20, {"right"}),
        ("letters_turns", 64, 0, {"grew", "words"}),
        ("letters_tools", 0, 60, {"looked"}),
    ],
)
def test_a_run_plays_a_taskset_with_its_rows_and_its_rewards(
    runs, python, arguments, taskset, limit, sft_steps, rewards
):
    run = runs.get(
        *COMMON,
        *arguments(f"taskset='{taskset}'", limit),
        f"--config.sft.steps={sft_steps}",
        "--config.sft.batch_size=16",
        "--config.sft.learning_rate=0.01",
        python=python,
        limit_secs=600,  # Each reply starts a program of the harness.
    )
    assert [step["step"] for step in read_metrics(run.workdir, "rl")] == [1, 2]
    rollouts = [*read_rollouts(run.workdir)]
    assert len(rollouts) == 8
    for one in rollouts:
        assert one.episode["reason"] == "done"
        assert {*one.episode["rewards"]} == rewards
        assert one.reward == pytest.approx(sum(one.episode["rewards"].values()))
    if taskset == "letters_tools":
        assert max(one.reward for one in rollouts) == 1.0
        assert max(one.episode["turns"] for one in rollouts) > 1
    assert processes_of(run.workdir) == {}


def test_a_taskset_whose_judge_fails_ends_the_run_with_its_reason(python, arguments, tmp_path):
    """An error is no reward of 0."""
    given = arguments("taskset='letters_once', options={'fault': 'reward'}")
    # Eight failures are enough for a verdict, and the run must have steps left by then.
    started = [*COMMON, *given, "--config.sft.steps=0", "--config.trainer.steps=20"]
    with launch(*started, workdir=tmp_path / "run", python=python, forks=False) as process:
        printed, _ = process.communicate(timeout=800)
    assert process.returncode != 0
    assert re.search("the judge is away", printed), printed[-3000:]
    assert "unjudged" in printed
