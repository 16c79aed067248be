"""Whole runs that play games of other packages, in every mode."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib

import pytest
import uv

from rl_sync.records.metrics import read_metrics
from rl_sync.records.rollouts.rollout_records import read_rollouts
from rl_sync.roles.assembly import wiring
from rl_sync.roles.master.group_admission import EPISODE_FAILED
from tests.runs import playing
from tests.runs.conftest import (
    EMBEDDED,
    ROOT,
    assert_nothing_is_lost_or_doubled,
    assert_within_the_staleness_bound,
    flags,
)
from tests.runs.living import processes_of

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

STEPS = 2
MODES = {
    "synchronous": flags("synchronous", colocate=True),
    "one_step_off_policy": flags("one_step_off_policy", colocate=True),
    "asynchronous": flags("asynchronous", colocate=True),
    "multi_explorer": flags("multi_explorer", count=2, colocate=True, transfer="collective"),
}
GAME = (
    EMBEDDED,
    "--config.environment.limit_secs=120",
    "--config.environment.workers=4",
    "--config.task.max_completion_tokens=3",
    f"--config.trainer.steps={STEPS}",
    "--config.trainer.groups_per_step=4",
    "--config.trainer.batching=bucketed",  # Demonstrations are much shorter than episodes.
    "--config.evaluation.problems=4",
    "--config.sft.steps=40",
    "--config.sft.batch_size=16",
    "--config.sft.probe_every_steps=1000",
    "--config.sft.probe_problems=4",
    "--config.sft.learning_rate=0.01",
    "--config.reward.record=all",
)
every_mode = pytest.mark.parametrize("mode", MODES)
one_mode = pytest.mark.parametrize("mode", ["multi_explorer"])  # These runs take minutes.
ENDED = {"done", "turns"}

OPENENV = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][
    "openenv"
]
SERVER = """
import sys
from tests.addons.games.openenv_server import serving
with serving() as url:
    print(url, flush=True)
    sys.stdin.read()
"""


def needs(package):
    is_missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(is_missing, reason=f"needs the package {package}")


@pytest.fixture(name="tokenizer", scope="module")
def _tokenizer(tmp_path_factory):
    return playing.save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(name="openenv", scope="module")
def _openenv():
    """Returns the command of a Python that has OpenEnv beside the packages of this one."""
    command = [uv.find_uv_bin(), "run", "--no-project", "--python", sys.executable]
    command += [part for package in OPENENV for part in ("--with", package)]
    command += ["python"]
    made = subprocess.run([*command, "-c", ""], capture_output=True, text=True, timeout=240)
    if made.returncode:
        pytest.skip(f"uv cannot install openenv: {made.stderr.strip().splitlines()[-1]}")
    return command


@pytest.fixture(name="server", scope="module")
def _server(openenv):
    """Serves a game in a process of its own; returns its address."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*openenv, "-c", SERVER],
        cwd=ROOT,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        url = server.stdout.readline().strip()
        assert url.startswith("http://"), f"the server ended: {server.wait(30)}"
        yield url
        server.stdin.close()


def played(run):
    """Checks what holds for a run of any game; returns each trained episode with its row."""
    assert_within_the_staleness_bound(run)
    assert_nothing_is_lost_or_doubled(run)
    assert processes_of(run.workdir) == {}
    assert not [entry for entry in run.ledger if entry["event"] == EPISODE_FAILED]
    for step in read_metrics(run.workdir, "rl"):
        assert step["gradient_norm"] > 0
        assert step["reward/unjudged"] == 0.0
    task = wiring.load_task(run.settings)
    judged = run.judged
    assert {one["held_out"] for one in judged} == {True, False}
    for one in judged:
        assert one["episode"]["reason"] in ENDED, one["episode"]
        assert one["score"] == pytest.approx(sum(one["episode"]["rewards"].values()))
    rollouts = [*read_rollouts(run.workdir)]
    trainer = run.settings.trainer
    assert len(rollouts) == trainer.steps * trainer.groups_per_step * trainer.group_size
    for one in rollouts:
        replies = [turn for turn in one.turns if turn["by"] == "policy"]
        assert len(replies) == one.episode["turns"]
        assert one.episode["reason"] in ENDED
        assert one.reward == pytest.approx(sum(one.episode["rewards"].values()))
    longest = max(one.episode["turns"] for one in rollouts)
    assert longest > 1, "no game went on after a reply"
    return [(one, task.train[one.prompt_id].fields) for one in rollouts]


@needs("textarena")
@one_mode
def test_rows_name_the_games_of_textarena_that_a_run_plays(runs, tokenizer, mode):
    run = runs.get(
        *GAME,
        *MODES[mode],
        f"--config.tokenizer.path={tokenizer}",
        "--config.task.name=tests/runs/playing.py:arena",
        "--config.environment.name=textarena",
        "--config.environment.max_turns=24",
        "--config.environment.max_tokens=1536",
    )
    games = set()
    for one, row in played(run):
        assert playing.SHOWN[row["game"]] in one.prompt
        assert [*one.episode["rewards"]] == ["game"]
        assert one.episode["reason"] == "done"
        games.add(row["game"])
    assert games == set(playing.SHOWN)


@needs("gymnasium")
@every_mode
def test_a_run_plays_a_game_of_gymnasium_with_the_prompts_of_its_rows(runs, tokenizer, mode):
    options = "options={'is_slippery': False, 'max_episode_steps': 6}"
    run = runs.get(
        *GAME,
        *MODES[mode],
        f"--config.tokenizer.path={tokenizer}",
        "--config.task.name=tests/runs/playing.py:lake",
        "--config.environment.name=gymnasium(game='FrozenLake-v1',"
        f" actions=('left', 'down', 'right', 'up'), {options})",
        "--config.environment.max_turns=24",
        "--config.environment.max_tokens=768",
    )
    for one, row in played(run):
        assert f"Lake {row['lake']}: reach G.\n" in one.prompt
        assert "(S)FFF" in one.prompt
        assert "game" in one.episode["rewards"]
        assert 1 <= one.episode["metrics"]["steps"] <= 6


@one_mode
def test_a_run_plays_at_a_server_of_openenv_with_the_options_of_its_rows(
    runs, tokenizer, openenv, server, mode
):
    run = runs.get(
        *GAME,
        *MODES[mode],
        f"--config.tokenizer.path={tokenizer}",
        "--config.task.name=tests/runs/playing.py:words",
        f"--config.environment.name=openenv(url='{server}', options='length')",
        "--config.environment.max_turns=6",
        "--config.environment.max_tokens=384",
        python=openenv,
    )
    for one, row in played(run):
        assert f"Say a word of {row['length']} letters." in one.prompt
        assert one.episode["reason"] == "done"
        assert "reward" in one.episode["rewards"]
        right = one.episode["turns"] - 1
        assert one.reward in (-1.0 + 0.25 * right, 1.5)
