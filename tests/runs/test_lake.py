"""A tiny run of configs/lake.py: each turn of the game reaches the policy as an image."""

from __future__ import annotations

import collections
import os
import subprocess
import sys

import pytest

from rl_sync.addons.games.frozen_lake import FIELD
from rl_sync.addons.toys.board import Board
from rl_sync.configs.lake import PIXELS
from rl_sync.images import Image
from rl_sync.records.metrics import read_metrics
from rl_sync.records.rollouts.rollout_records import ENVIRONMENT, read_rollouts
from rl_sync.roles.assembly import wiring
from rl_sync.workdir import Workdir
from tests.runs.conftest import EMBEDDED, ROOT, RunRecord, assert_within_the_staleness_bound

TURN_TOKENS = 9 + 1  # Those of the picture, and the row's question, a colon.
SMALL = (
    "--config=configs/lake.py",
    EMBEDDED,
    "--config.launch.colocate=true",
    "--config.sync.mode=synchronous",
    "--config.model.embed_dim=32",
    "--config.model.num_layers=1",
    "--config.model.mlp_dim=64",
    "--config.model.vision.num_layers=1",
    "--config.sft.steps=0",
    "--config.trainer.steps=2",
    "--config.trainer.groups_per_step=16",
    "--config.trainer.group_size=2",
    "--config.evaluation.problems=8",
    "--config.environment.max_turns=3",
    "--config.environment.max_tokens=33",
    "--config.algorithm.entropy_coefficient=0.1",
)


@pytest.mark.nightly
def test_each_turn_of_the_lake_reaches_the_policy_as_an_image(runs, tmp_path):
    workdir = Workdir(tmp_path / "run")
    words = [sys.executable, "-m", "launcher", *SMALL, f"--config.workdir={workdir}"]
    variables = {**os.environ, **runs.variables}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunRecord(workdir, done.stdout)
    assert_within_the_staleness_bound(run)
    task = wiring.load_task(run.settings)
    token, rollouts = task.tokenizer.image_id(), list(read_rollouts(workdir))
    assert len({one.prompt_id for one in rollouts}) > 8
    for one in rollouts:
        lake = Board.read(task.train[one.prompt_id].row[FIELD])
        [image] = one.images
        assert image["digest"] == Image.of_array(lake.pixels(PIXELS)).digest
        assert one.prompt == f"⟨image 1: {PIXELS}x{PIXELS}⟩:"
        assert one.prompt_ids.count(token) == TURN_TOKENS - 1
        answers = [turn for turn in one.turns if turn["by"] == ENVIRONMENT]
        assert all("⟨image" in turn["text"] for turn in answers)
        assert one.ids.count(token) == (TURN_TOKENS - 1) * len(answers)
    assert any(len(one.turns) > 2 for one in rollouts), "there is no later turn"
    _assert_only_pictures_tell_lakes_apart([one for one in rollouts if one.step == 1])
    for line in read_metrics(workdir, "rl"):
        assert line["gradient_norm"] > 0
        assert line["logprob_gap"] < 1e-4, "the trainer sees what the explorer saw"


def _assert_only_pictures_tell_lakes_apart(rollouts):
    """Prompts are the same tokens, and yet equal replies differ in probability between lakes."""
    assert len({tuple(one.prompt_ids) for one in rollouts}) == 1
    assert {version for one in rollouts for version, _ in one.versions} <= {0, -1}
    of_reply = collections.defaultdict(lambda: collections.defaultdict(set))
    for one in rollouts:
        of_reply[one.ids[0]][one.prompt_id].add(one.logprobs[0])
    assert max(map(len, of_reply.values())) >= 3, "no reply was given to several lakes"
    for of_lake in of_reply.values():
        assert all(len(values) == 1 for values in of_lake.values())
        if len(of_lake) >= 3:  # Two may agree in the four digits that are recorded.
            assert len(set.union(*of_lake.values())) > 1
