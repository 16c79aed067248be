"""Trees of processes, what kills them, and limits of one process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from rl_sync.isolation import process_limits

SHELL = "sleep 1000 & (sleep 1000 & sleep 1000; true) & wait; true"


@pytest.fixture
def shell():
    process = subprocess.Popen(["sh", "-c", SHELL], start_new_session=True)
    deadline = time.monotonic() + 10
    while len(process_limits.process_tree(process.pid).pids) < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    yield process
    process.kill()
    process.wait()


def test_a_tree_has_all_processes_below_one_and_what_they_hold(shell):
    tree = process_limits.process_tree(shell.pid)
    assert len(tree.pids) == len({*tree.pids}) == tree.threads == 5
    assert tree.pids[0] == shell.pid
    assert tree.memory_bytes() > 1 << 18
    found = process_limits._tree_elsewhere(shell.pid)
    assert ({*found.pids}, found.threads) == ({*tree.pids}, tree.threads)


def test_a_tree_is_killed_whole(shell):
    pids = process_limits.process_tree(shell.pid).pids
    process_limits.kill_tree(shell.pid)
    shell.wait(10)
    gone, alive = psutil.wait_procs(
        [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=10
    )
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE], gone
    tree = process_limits.process_tree(shell.pid)
    assert (tree.pids, tree.threads, tree.memory_bytes()) == ([shell.pid], 0, 0)
    process_limits.kill_tree(shell.pid)  # Nothing is left to kill.


def test_group_mates_are_killed_and_others_are_not():
    code = """
import subprocess, time
from rl_sync.isolation.process_limits import kill_group_mates
mate = subprocess.Popen(["sleep", "1000"])
other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
kill_group_mates()
print(mate.wait(10), other.poll())
other.kill()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=False,
    )
    assert done.stdout.split() == ["-9", "None"], done


@pytest.mark.gate
def test_limits_of_memory_and_time_end_what_exceeds_them():
    for code, fault in (
        ("limit_memory(1 << 30); bytearray(2 << 30)", "MemoryError"),
        ("limit_more_cpu(0.5)\nwhile True: pass", -24),
    ):
        done = subprocess.run(
            [sys.executable, "-c", f"from rl_sync.isolation.process_limits import *\n{code}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert fault in (done.returncode, done.stderr.split()[-1] if done.stderr else ""), done


def test_an_end_is_told_in_words():
    words = process_limits.end_in_words
    assert words(3) == "ended with exit code 3"
    assert words(-11) == "was killed by SIGSEGV"
    assert words(-9) == "was killed by SIGKILL, as the system does where memory runs out"
    assert words(-200) == "was killed by signal 200"
    assert process_limits.address_space_bytes() > 1 << 20
    assert os.getpid() == process_limits.process_tree(os.getpid()).pids[0]
