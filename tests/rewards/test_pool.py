"""Worker processes that judge: their answers, and their end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_sync.rewards.pool import RewardPool
from rl_sync.rewards.router import RewardRequest

ROOT = Path(__file__).parents[2]
RIGHT, WRONG = RewardRequest("exact", "1+1=", "2", "2"), RewardRequest("exact", "1+1=", "3", "2")
HOLDER = """
import re, sys, threading, time
from multiprocessing import resource_tracker
from rl_sync.rewards import pool as pools
from rl_sync.rewards.router import RewardRequest

if sys.argv[1] == "without signals":
    pools._PR_SET_PDEATHSIG = 0  # As where there are none.

if __name__ == "__main__":
    pool = pools.RewardPool(2)
    # From a thread that ends, as a server's may.
    ask = threading.Thread(target=pool.judge, args=[[RewardRequest("exact", "1+1=", "2", "2")] * 4])
    ask.start()
    ask.join()
    if sys.argv[1] == "stuck":
        for _ in range(2):
            pool._pool.submit(re.match, "(a+)+$", "a" * 60 + "b")
    time.sleep(0.5)
    print(*pool._pool._processes, resource_tracker._resource_tracker._pid, flush=True)
    time.sleep(1000)
"""


def lives(process: int) -> bool:
    """Says whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_rewards_come_in_the_order_of_the_requests():
    with contextlib.closing(RewardPool(2)) as pool:
        assert pool.judge([RIGHT, WRONG, WRONG, RIGHT, RIGHT]) == [1.0, 0.0, 0.0, 1.0, 1.0]
        assert pool.judge([]) == []
    with contextlib.closing(RewardPool(0)) as pool:
        assert pool.judge([WRONG, RIGHT]) == [0.0, 1.0]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("case", ["idle", "stuck", "without signals"])
def test_judges_end_with_who_started_them_even_if_it_is_killed(case, tmp_path):
    script = tmp_path / "holder.py"
    script.write_text(HOLDER)
    holder = subprocess.Popen(
        [sys.executable, str(script), case],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    processes = [int(word) for word in holder.stdout.readline().split()]
    assert len(processes) == 3
    assert all(map(lives, processes))
    holder.kill()
    holder.communicate()
    deadline = time.monotonic() + 10
    while any(map(lives, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(lives, processes))
