"""`resume` needs a work directory and nothing else."""

from __future__ import annotations

import json

import jax.numpy as jnp
import pytest

from rl_sync.checkpoints.snapshot_folder import SnapshotFolder
from rl_sync.launcher import command_line
from rl_sync.launcher.commands import resume, run
from rl_sync.records.run_outcome import RunOutcome, record_end
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from rl_sync.workdir import Workdir
from tests.runs import quick


@pytest.fixture
def workdir(tmp_path):
    """The work directory of a run that was moved after it was made elsewhere."""
    config = quick.get_config()
    config.workdir, config.sync.mode, config.seed = "/somewhere/else", "asynchronous", 17
    settings = read_settings(config.to_dict())
    Workdir(tmp_path).config.write_text(json.dumps(settings.resolved()))
    return Workdir(tmp_path)


@pytest.fixture
def resumed(monkeypatch):
    configs = []
    monkeypatch.setattr(run, "start", lambda config: configs.append(config) or 0)
    return configs


def resume_with(*words):
    return resume.execute(command_line.parse(["resume", *words]))


def test_the_runs_own_config_is_taken_with_changes_to_it(workdir, resumed):
    SnapshotFolder(workdir.snapshots).save(3, {"x": jnp.ones(2)}, {})
    assert resume_with(f"--workdir={workdir}", "--config.trainer.steps=99") == 0
    (config,) = resumed
    assert (config["seed"], config["sync"]["mode"]) == (17, "asynchronous")
    assert (config["trainer"]["steps"], config["workdir"]) == (99, str(workdir))


def test_dtypes_of_roles_follow_that_of_the_model(workdir, resumed):
    SnapshotFolder(workdir.snapshots).save(3, {"x": jnp.ones(2)}, {})
    resume_with(f"--workdir={workdir}", "--config.model.dtype=bfloat16")
    named = "--config.explorer.dtype=float16"
    resume_with(f"--workdir={workdir}", "--config.model.dtype=bfloat16", named)
    dtypes = []
    for config in resumed:
        settings = read_settings(config)
        dtypes.append((settings.compute_dtype, settings.explorer_dtype))
    assert dtypes == [("bfloat16", "bfloat16"), ("bfloat16", "float16")]


def test_a_run_that_has_finished_says_so_and_trains_longer_on_demand(workdir, resumed, capsys):
    SnapshotFolder(workdir.snapshots).save(3, {"x": jnp.ones(2)}, {})
    steps = json.loads(workdir.config.read_text())["trainer"]["steps"]
    record_end(workdir, RunOutcome(1.0, "digest"))
    assert resume_with(f"--workdir={workdir}") == 0
    assert f"all of its {steps} trainer steps" in (said := capsys.readouterr().out)
    assert f"--config.trainer.steps={2 * steps}" in said
    assert resumed == []
    resume_with(f"--workdir={workdir}", f"--config.trainer.steps={steps + 1}")
    for outcome in (RunOutcome(1.0, None, "a role died"), RunOutcome(1.0, "d", None, "SIGINT")):
        record_end(workdir, outcome)
        resume_with(f"--workdir={workdir}")
    assert len(resumed) == 3


def test_a_directory_without_a_snapshot_is_refused(workdir, resumed):
    with pytest.raises(ConfigError, match="holds no snapshot yet"):
        resume_with(f"--workdir={workdir}")
    assert resumed == []


def test_a_run_whose_batches_are_logged_from_its_start_needs_no_snapshot(
    workdir, resumed, monkeypatch
):
    monkeypatch.setattr(resume, "counted_step", lambda at, settings: 7)
    assert resume_with(f"--workdir={workdir}") == 0
    assert [config["workdir"] for config in resumed] == [str(workdir)]


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not the work directory of a run"):
        resume_with(f"--workdir={tmp_path}")
