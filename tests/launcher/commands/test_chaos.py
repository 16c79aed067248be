"""`chaos` kills processes at random, and says whether the records are whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import types

import psutil
import pytest

from rl_sync.launcher import command_line
from rl_sync.launcher.commands import chaos
from rl_sync.launcher.processes import disturbance
from rl_sync.launcher.processes.disturbance import (
    KILL,
    PAUSE,
    STARVE,
    STOP,
    WINDOWS,
    Disturbance,
    DisturbancePlan,
    windows_open,
)
from rl_sync.records.chaos_windows import VARIABLE
from rl_sync.records.json_lines import read_json_lines
from rl_sync.records.spans import SpanKind
from rl_sync.settings.records import ConfigError
from rl_sync.workdir import Workdir
from tests.runs.conftest import ROOT, TIMEOUT_SECS, quickly, session_directory


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def state_of(process):
    return open(f"/proc/{process.pid}/stat").read().rpartition(")")[2].split()[0]


def disturbed(tmp_path, sleeper, kind, until):
    workdir = Workdir(tmp_path)
    disturbing = Disturbance(
        workdir,
        lambda: {"trainer": sleeper.pid},
        DisturbancePlan(seed=1, every_secs=0.2, kinds=(kind,)),
    )
    with disturbing:
        deadline = time.monotonic() + 20
        while not until():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    (first, *_) = read_json_lines(workdir.chaos)
    assert (first["kind"], first["process"]) == (kind, "trainer")


def test_a_process_is_killed(tmp_path, sleeper):
    disturbed(tmp_path, sleeper, KILL, lambda: sleeper.poll() is not None)
    assert sleeper.returncode == -signal.SIGKILL


def test_a_process_is_stopped_for_good(tmp_path, sleeper):
    disturbed(tmp_path, sleeper, STOP, lambda: state_of(sleeper) == "T")
    assert state_of(sleeper) == "T"


def test_a_paused_process_goes_on(tmp_path, sleeper):
    disturbed(tmp_path, sleeper, PAUSE, lambda: state_of(sleeper) == "T")
    assert state_of(sleeper) != "T"


def test_a_starved_process_gets_little_of_the_processor_and_then_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(disturbance, "_STARVE_SECS", 1.0)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        workdir = Workdir(tmp_path)
        with Disturbance(
            workdir,
            lambda: {"trainer": busy.pid},
            DisturbancePlan(seed=1, every_secs=0.2, kinds=(STARVE,)),
        ) as made:
            deadline = time.monotonic() + 20
            while not made.made:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            began, before = time.monotonic(), psutil.Process(busy.pid).cpu_times().user
            time.sleep(0.6)
            spent = psutil.Process(busy.pid).cpu_times().user - before
            assert spent < (time.monotonic() - began) / 2
        assert state_of(busy) != "T"
    finally:
        busy.kill()
        busy.wait()


ROLE = """
import sys, time
from rl_sync.records.spans import SpanKind, SpanRecorder
spans = SpanRecorder(None, "trainer")
while True:
    with spans.span(SpanKind.WAIT):
        time.sleep(0.1)
    with spans.span(SpanKind.SNAPSHOT):
        print("saves", flush=True)
        time.sleep(0.1)
        print("saved", flush=True)
"""


def test_a_process_is_struck_in_a_window_that_it_enters(tmp_path):
    with windows_open():
        role = subprocess.Popen(
            [sys.executable, "-c", ROLE],
            start_new_session=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        workdir = Workdir(tmp_path)
        with Disturbance(
            workdir,
            lambda: {"trainer": role.pid},
            DisturbancePlan(seed=1, every_secs=1.0, windows=("snapshot",)),
        ):
            said = role.communicate(timeout=60)[0].split()
    assert role.returncode == -signal.SIGKILL
    assert said[-1] == "saves"
    (line, *_) = read_json_lines(workdir.chaos)
    assert (line["kind"], line["process"], line["window"]) == ("kill", "trainer", "snapshot")


def test_a_window_that_nobody_enters_is_given_up(tmp_path):
    with windows_open():
        made = Disturbance(
            Workdir(tmp_path),
            lambda: {"trainer": -1},
            DisturbancePlan(seed=1, every_secs=0.05, windows=("train",)),
        )
        with made:
            time.sleep(0.5)
        assert os.listdir(os.environ[VARIABLE]) == []
    assert made.made == []


def test_windows_are_kinds_of_spans():
    assert {*WINDOWS} - {"sync"} <= {*SpanKind}


def test_only_the_named_roles_are_disturbed(tmp_path):
    disturbing = Disturbance(
        Workdir(tmp_path),
        lambda: {"trainer": -1},
        DisturbancePlan(seed=1, every_secs=0.01, roles=("master",)),
    )
    with disturbing:
        time.sleep(0.2)
    assert disturbing.made == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kinds=kill,explode"], "--kinds=explode is not one of kill, pause, stop, starve"),
        (["--config.sync.mode=asynchronous", "--compare"], "needs a mode with exact pulls"),
        (["--roles=master,explorer7"], "--roles=explorer7 is not a process of this run, which has"),
        (["--windows=train,lunch"], "--windows=lunch is not one of rollout, score, insert, train"),
        (["--every=0"], "--every=0 must be at least 0.1 seconds"),
        (["--every=nan"], "--every=nan must be at least"),
    ],
)
def test_a_mistake_is_one_line(words, message):
    arguments = command_line.parse(["chaos", "--config=arithmetic", *words])
    with pytest.raises(ConfigError, match=message):
        chaos.execute(arguments)


@pytest.mark.parametrize("has_begun", [False, True])
def test_nothing_is_disturbed_before_a_restart_can_follow(has_begun):
    one = types.SimpleNamespace(processes=lambda: {"trainer": 7}, has_begun=has_begun)
    assert chaos.victims(one) == ({"trainer": 7} if has_begun else {})


@pytest.mark.nightly  # On a busy machine, roles hardly start between two kills.
@pytest.mark.timeout(3 * TIMEOUT_SECS)
def test_a_disturbed_run_ends_well_with_the_digest_of_an_undisturbed_one(tmp_path):
    command = [sys.executable, "-m", "launcher", "chaos", "--config=tests/runs/quick.py"]
    command += [f"--config.workdir={tmp_path / 'run'}", "--config.replay.backend=embedded"]
    command += ["--config.sync.mode=synchronous", "--config.sync.transfer=server"]
    command += ["--config.trainer.steps=300", "--every=12", "--seed=2", "--compare"]
    environment = {**os.environ, **quickly(session_directory(tmp_path))}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=2 * TIMEOUT_SECS, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The undisturbed run has the same digest" in done.stdout
    assert done.stdout.endswith("All records are whole.\n")
    assert "of the time led to steps that count; lost:" in done.stdout
