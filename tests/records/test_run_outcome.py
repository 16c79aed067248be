"""Records of a run's beginning and end."""

import platform

import jax

from rl_sync.records.run_outcome import (
    RunOutcome,
    read_outcome,
    read_versions,
    record_end,
    record_start,
)
from rl_sync.workdir import Workdir


def test_a_run_records_its_versions_and_its_end(tmp_path):
    assert read_versions(tmp_path) == {}
    record_start(tmp_path)
    assert read_versions(tmp_path)["jax"] == jax.__version__
    assert read_versions(tmp_path)["Python"] == platform.python_version()
    assert read_outcome(tmp_path) is None
    record_end(tmp_path, RunOutcome(5.0, "c80fe1", None, "interrupted"))
    assert read_outcome(tmp_path) == RunOutcome(5.0, "c80fe1", None, "interrupted")


def test_a_run_that_goes_on_has_no_end(tmp_path):
    record_end(tmp_path, RunOutcome(5.0, None, "the trainer died"))
    assert read_outcome(tmp_path).failed == "the trainer died"
    record_start(tmp_path)
    assert read_outcome(tmp_path) is None


def test_a_damaged_record_is_none(tmp_path):
    Workdir(tmp_path).outcome.write_text('{"secs": 1')
    Workdir(tmp_path).versions.write_text("[]")
    assert read_outcome(tmp_path) is None
    assert read_versions(tmp_path) == {}
