"""Leaving a cluster: real processes, of which the host comes late."""

import subprocess
import sys

import pytest

from rl_sync.cluster.ports import free_ports
from rl_sync.weights.cluster import host_leaves

_PROCESS = """
import sys, time
from rl_sync.weights.cluster import host_leaves, init_cluster, leave_cluster

process = int(sys.argv[1])
init_cluster(f"127.0.0.1:{sys.argv[2]}", 2, process, timeout_secs=60)
polls = 0
if process == 0:
    time.sleep(3.0)
while not host_leaves(0.25):
    polls += 1
leave_cluster(2.0)
print("polls", polls)
"""


@pytest.mark.nightly
def test_a_process_can_wait_for_a_host_that_is_late_and_leaves_with_it():
    """The wait for all is two seconds long, and the host comes after three."""
    (port,) = map(str, free_ports("127.0.0.1", 1))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PROCESS, str(number), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "polls 0" in outputs[0]
    assert int(outputs[1].rpartition("polls ")[2]) >= 4


def test_without_a_cluster_nobody_is_waited_for():
    assert host_leaves(60.0)
