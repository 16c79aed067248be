"""A run in a process of its own, seen from Python: its mistakes, its failures, and its stop."""

from __future__ import annotations

import re
import sys
import tempfile
import time

import pytest

import rl_sync
from rl_sync.api.screen import Silent
from rl_sync.api.started_run import Run

# Stands for the launcher: writes a config and a line, then waits. The first SIGINT makes it save,
# which takes a while, and a second one ends that, as in the launcher.
SCRIPT = """
import json, pathlib, signal, sys, time
directory, steps, status, said = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
there = pathlib.Path(directory)
there.mkdir(exist_ok=True)
asked = []
signal.signal(signal.SIGINT, lambda *_: asked.append(time.monotonic()))
(there / "config.json").write_text("{}")
for step in range(1, steps + 1):
    with open(there / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"phase": "rl", "step": step, "reward_mean": 0.5}) + "\\n")
if said:
    print(said, file=sys.stderr)
if status >= 0:
    sys.exit(status)
while not asked or (time.monotonic() < asked[0] + 1 and len(asked) == 1):
    time.sleep(0.01)
if len(asked) == 1:
    (there / "snapshot").touch()
sys.exit(130)
"""


@pytest.fixture
def started(tmp_path):
    """Starts a process that stands for the launcher."""
    runs = []

    def start(steps=3, status=-1, said="") -> Run:
        words = [str(tmp_path / "run"), str(steps), str(status), said]
        folder = tempfile.TemporaryDirectory()
        command = [sys.executable, "-c", SCRIPT, *words]
        runs.append(Run(command, tmp_path / "run", Silent(), folder, {}))
        return runs[-1]

    yield start
    for run in runs:
        run._process.kill()


def test_a_run_that_is_asked_to_stop_at_each_event_saves(started, tmp_path):
    run = started(steps=5)
    seen = 0
    for event in run.events():
        seen += 1
        assert event.values["reward_mean"] == 0.5
        run.stop()
        run.stop()
    run.stop()
    assert seen == 5
    run.wait()
    assert (tmp_path / "run" / "snapshot").exists()


def test_events_of_a_run_that_fails_end_by_raising_its_failure(started):
    run, seen = started(steps=2, status=1, said="The run failed: explorer 1 died."), []
    with pytest.raises(rl_sync.RunError, match="explorer 1 died"):
        seen.extend(run.events())
    assert [event.step for event in seen] == [1, 2]
    with pytest.raises(rl_sync.RunError, match="explorer 1 died"):
        run.wait()


def test_events_of_a_run_that_cannot_be_raise_the_mistake(started):
    run = started(steps=0, status=2, said="error: trainer.steps=-1 must be at least 1.")
    with pytest.raises(rl_sync.ConfigError, match=r"^trainer.steps=-1 must be at least 1"):
        list(run.events())


def test_events_of_a_run_that_ends_well_just_end(started):
    assert [event.step for event in started(steps=4, status=0).events()] == [1, 2, 3, 4]


def test_a_run_has_begun_when_its_config_is_written_anew(started, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    run = started(steps=1)
    run.wait_for_begin()
    assert run.is_running


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("config", "changes", "says"),
    [
        ("arithmetics", None, "did you mean --config=configs/arithmetic.py"),
        ("arithmetic", {"trainer.stepps": 3}, "did you mean --config.trainer.steps"),
        ("arithmetic", {"trainer.steps": "many"}, "must be a whole number"),
        ({"sync": {"mode": "sometimes"}}, None, "sync.mode"),
        ({"algorithm": {"name": "grpoo"}}, None, "grpo"),
        ("arithmetic", {"task.reward": "nowhere.py:score"}, "nowhere.py"),
    ],
)
def test_a_mistake_raises_when_the_run_is_started(config, changes, says, tmp_path):
    before = time.monotonic()
    with pytest.raises(rl_sync.ConfigError, match=re.escape(says)):
        rl_sync.start(config, changes=changes, workdir=tmp_path / "run", quiet=True)
    assert time.monotonic() - before < 60
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
