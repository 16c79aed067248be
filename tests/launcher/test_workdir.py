"""A work directory is readied for what the trainer will find in it."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import pytest
from launcher import workdir as work

from rl_sync.runtime.settings import ConfigError, RunSettings
from rl_sync.runtime.snapshots import load_snapshot, save_snapshot
from tests.runs import tiny

STATE = {"x": jnp.zeros(3)}


@pytest.fixture
def settings(tmp_path) -> RunSettings:
    """Of a run that has left two snapshots."""
    config = {**tiny.get_config().to_dict(), "workdir": str(tmp_path)}
    settings = RunSettings.from_config(config)
    (tmp_path / "config.json").write_text(json.dumps(settings.resolved()))
    for step in (5, 10):
        save_snapshot(tmp_path / "checkpoints", step, STATE, {})
    return settings


def lose_metadata(workdir: Path, step: int) -> None:
    (workdir / "checkpoints" / f"snapshot_{step:08d}" / "metadata.json").unlink()


def test_a_run_goes_on_from_the_snapshot_that_the_trainer_finds_whole(settings, tmp_path, capsys):
    assert work.prepare(tmp_path, settings) == 10
    lose_metadata(tmp_path, 10)
    assert work.prepare(tmp_path, settings) == 5
    (said,) = capsys.readouterr().out.splitlines()
    assert said.startswith("WARNING: The snapshot ")
    assert "it lacks metadata.json. The one of step 5 is used instead" in said
    assert load_snapshot(tmp_path / "checkpoints", None, STATE)[0] == 5
    assert (tmp_path / "checkpoints" / "damaged_00000010" / "files.json").exists()


def test_a_run_none_of_whose_snapshots_is_whole_does_not_begin_anew(settings, tmp_path):
    for step in (5, 10):
        lose_metadata(tmp_path, step)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"No snapshot in .*/checkpoints is whole"):
            work.prepare(tmp_path, settings)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
