"""Runs that end in a Hugging Face checkpoint and start from one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.runs.conftest import ROOT


@pytest.mark.nightly
def test_a_run_starts_from_the_policy_that_another_exported(runs, tmp_path):
    embedded = "--config.replay.backend=embedded"
    first = runs.get("--config.sync.mode=one_step_off_policy", embedded)
    assert f" export --workdir={first.workdir}" in first.output
    target = tmp_path / "policy"
    command = [sys.executable, "-m", "launcher", "export"]
    command += [f"--workdir={first.workdir}", f"--to={target}"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "after trainer step 12" in done.stdout
    # A run that learns nothing ends with the parameters that it started from.
    second = runs.get(
        f"--config.model.path={target}",
        "--config.model.embed_dim=7",  # The checkpoint's counts.
        "--config.sft.steps=0",
        "--config.trainer.steps=1",
        "--config.optimizer.learning_rate=0.0",
        embedded,
    )
    assert second.digest == first.digest
