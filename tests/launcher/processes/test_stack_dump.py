"""Stacks of a hung process, by the process itself and by py-spy, where it is installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from rl_sync.launcher.processes import stack_dump
from rl_sync.launcher.processes.stack_dump import dump_stacks
from tests.processes import lives

SLEEPS = "import time; print('ready', flush=True); time.sleep(60)"


@pytest.fixture
def sleeper():
    """A process that would be killed by SIGUSR1."""
    process = subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def py_spy(tmp_path, monkeypatch):
    """Makes a py-spy of a shell script, which is the only one that is found."""

    def make(script):
        program = tmp_path / "bin" / "py-spy"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        monkeypatch.setattr(stack_dump.sys, "executable", str(tmp_path / "python"))

    return make


def test_what_py_spy_says_stands_in_the_log(tmp_path, sleeper, py_spy):
    py_spy('echo "args: $*"; echo "a complaint" >&2')
    log = tmp_path / "log"
    dump_stacks(sleeper.pid, log, answers=False)
    assert log.read_text() == (
        f"Stacks of process {sleeper.pid} by py-spy:\n"
        f"args: dump --nonblocking --pid {sleeper.pid}\na complaint\n"
    )
    assert sleeper.poll() is None


def test_without_py_spy_the_log_has_the_processs_own_stacks_alone(tmp_path, sleeper, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(stack_dump.sys, "executable", str(tmp_path / "python"))
    dump_stacks(sleeper.pid, tmp_path / "log", answers=False)
    assert not (tmp_path / "log").exists()


def test_a_py_spy_that_hangs_is_killed_with_its_processes(tmp_path, sleeper, py_spy, monkeypatch):
    monkeypatch.setattr(stack_dump, "_PY_SPY_SECS", 0.5)
    child = tmp_path / "child"
    py_spy(f"sleep 60 & echo $! > {child}; wait")
    started = time.monotonic()
    dump_stacks(sleeper.pid, tmp_path / "log", answers=False)
    assert time.monotonic() - started < 10
    assert "py-spy did not end within 0.5 s." in (tmp_path / "log").read_text()
    deadline = time.monotonic() + 10
    while lives(int(child.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_process_that_is_gone_is_no_error(tmp_path, sleeper, py_spy):
    py_spy("echo No such process; exit 1")
    sleeper.kill()
    sleeper.wait()
    dump_stacks(sleeper.pid, tmp_path / "log")
    assert "No such process" in (tmp_path / "log").read_text()


def test_the_real_one_reads_a_process_that_does_not_answer(tmp_path, sleeper):
    """It is stopped."""
    if stack_dump._py_spy() is None:
        pytest.skip("py-spy is not installed")
    os.kill(sleeper.pid, signal.SIGSTOP)
    dump_stacks(sleeper.pid, tmp_path / "log", answers=False)
    said = (tmp_path / "log").read_text()
    if "ermission" in said:
        pytest.skip("this machine does not let processes be read")
    assert "<module>" in said
