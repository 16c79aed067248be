"""Use of the machine by a process, as it is recorded."""

import subprocess
import sys

from rl_sync.records.json_lines import read_json_lines
from rl_sync.records.usage import UsageRecorder

BUSY = """
import sys, time
kept = bytearray(40 << 20)
kept[::4096] = b"1" * len(kept[::4096])
while time.process_time() < 0.5: pass
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_line_has_the_cpu_time_and_the_memory_of_a_process_and_its_children(tmp_path):
    path = tmp_path / "usage" / "trainer.jsonl"
    usage = UsageRecorder(path, every_secs=0.0)
    usage.look()
    child = subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    usage.look()
    child.communicate()
    usage.look(lambda: {"says": "compiles"})
    usage.close()
    before, during, after = read_json_lines(path)
    assert during["cpu_secs"] >= before["cpu_secs"] + 0.4
    assert during["memory_bytes"] >= before["memory_bytes"] + (40 << 20)
    assert after["memory_bytes"] < during["memory_bytes"] - (30 << 20)
    assert after["doing"] == {"says": "compiles"}
    assert "doing" not in during


def test_lines_keep_their_distance(tmp_path):
    usage = UsageRecorder(tmp_path / "master.jsonl", every_secs=60.0)
    for _ in range(3):
        usage.look()
    usage.close()
    assert len(read_json_lines(tmp_path / "master.jsonl")) == 1
