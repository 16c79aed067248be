"""The master's real server under explorers that work at a pace, as in a run.

`benchmarks/control_plane.py --paced` prints the table of it. Each explorer has a connection, sends
signs of life as often as processes do, and asks for a lease and reports its groups, so that it
delivers a number of groups a minute. The trainer's side claims the groups, reports a step for each
batch, and publishes a version. Nothing is generated or judged. Calls come at their times, whether
or not earlier ones were answered late, so waiting shows in the latencies.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import random
import statistics
import threading
import time
from typing import NamedTuple

from control_plane_calls import DEADLINE_SECS, Explorers, master_of

from rl_sync.cluster.session import heartbeat_secs
from rl_sync.messages.master_calls import AskStatus, Claim

THREADS = 32


class Paced(NamedTuple):
    """Measurements of a paced load.

    Attributes:
      calls: number of calls.
      secs: time that they took together.
      cpu_secs: CPU time of the master.
      groups: number of groups that were reported.
      steps: number of trainer steps.
      latencies: seconds of each call.
      late: seconds by which the load fell behind at the end.
      bytes: resident memory of the master.
    """

    calls: int
    secs: float
    cpu_secs: float
    groups: int
    steps: int
    latencies: list[float]
    late: float
    bytes: int


def paced(explorers: int, groups_a_minute: float, lease: int, secs: float) -> Paced:
    """Runs explorers at a pace for some seconds.

    Args:
      groups_a_minute: groups that each explorer delivers.
      lease: groups of a lease.
      secs: duration.
    """
    with master_of(explorers, lease) as (master, connect):
        crowd = Explorers(connect, explorers, lease)
        latencies: list[float] = []
        groups, late = [0], [0.0]
        lock = threading.Lock()
        try:
            crowd.begin()
            crowd.publish()
            period = 60.0 * lease / groups_a_minute
            beat = heartbeat_secs(explorers)
            drawn = random.Random(0)
            began = time.monotonic()
            queue = [
                (began + drawn.random() * every, kind, number)
                for number in range(1, explorers + 1)
                for kind, every in (("work", period), ("beat", beat))
            ]
            queue.append((began, "status", 0))
            heapq.heapify(queue)

            def timed(call):
                since = time.monotonic()
                answer = call()
                with lock:
                    latencies.append(time.monotonic() - since)
                return answer

            def work(number: int) -> None:
                if found := timed(lambda: crowd.ask(number)):
                    timed(lambda: crowd.report(number, found))
                    timed(lambda: crowd.trainer.call(Claim(found), DEADLINE_SECS))
                    with lock:
                        groups[0] += len(found)

            def drive() -> None:
                while True:
                    with lock:
                        if not queue or queue[0][0] > began + secs:
                            return
                        due, kind, number = heapq.heappop(queue)
                        every = {"work": period, "beat": beat, "status": 0.5}[kind]
                        heapq.heappush(queue, (due + every, kind, number))
                    if (left := due - time.monotonic()) > 0:
                        time.sleep(left)
                    late[0] = max(0.0, time.monotonic() - due)
                    if kind == "work":
                        work(number)
                    elif kind == "beat":
                        timed(functools.partial(crowd.beat, number))
                    else:
                        timed(lambda: crowd.trainer.call(AskStatus(), DEADLINE_SECS))

            before = _cpu_secs(master)
            threads = [threading.Thread(target=drive) for _ in range(THREADS)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
            took, cpu = time.monotonic() - began, _cpu_secs(master) - before
            memory = master.memory_info().rss
        finally:
            with contextlib.suppress(Exception):
                crowd.close()
    return Paced(len(latencies), took, cpu, groups[0], crowd.step, latencies, late[0], memory)


def figures(found: Paced) -> dict[str, float]:
    """Returns the figures of the table, by the heads of its rows."""
    percentiles = statistics.quantiles(found.latencies, n=100)
    return {
        "groups a minute, all explorers": 60 * found.groups / found.secs,
        "calls a second": found.calls / found.secs,
        "cores of the master": found.cpu_secs / found.secs,
        "CPU seconds of the master a step": found.cpu_secs / max(1, found.steps),
        "median answer, ms": 1e3 * statistics.median(found.latencies),
        "99th percentile, ms": 1e3 * percentiles[98],
        "behind at the end, s": found.late,
        "memory, MB": found.bytes / 1e6,
    }


def _cpu_secs(process) -> float:
    times = process.cpu_times()
    return times.user + times.system
