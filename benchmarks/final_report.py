"""Memory and seconds of the report at the end of a long run, of which records are made up.

    python benchmarks/final_report.py [--steps=1800] [--workdir=DIRECTORY] [--shows]

It writes the records of a run shaped like `configs/arithmetic.py`: a step generates 576 groups,
trains on 192, and leaves 222 KB in the ledger and the other files that the report reads, so 1800
steps leave 400 MB. Then a process of its own makes the report, and prints its seconds, those of the
CPU, and by how much its resident memory grew at most. `--shows` prints the report, too. An existing
`--workdir` is read as it is.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import psutil

from rl_sync.configs import arithmetic
from rl_sync.launcher.processes.run_text import final_report
from rl_sync.messages.run_result import Balance, RunResult, Summary
from rl_sync.settings.config_reading import read_settings
from rl_sync.workdir import Workdir

_LEASES, _TRAINED, _SECS, _BEGAN = 576, 192, 4.0, 1.79e9
_MB = 1e6


def ledger(step: int) -> Iterator[dict[str, Any]]:
    """Yields the events of a step's groups."""
    leases = [
        {"lease_id": lease, "ordinal": lease, "attempt": 0, "replacement": 0}
        | {"explorer": 1, "prompt_id": lease * 7919 % 16384, "success": lease % 5 / 4}
        for lease in range((step - 1) * _LEASES, step * _LEASES)
    ]
    now = _BEGAN + step * _SECS
    yield {"time": now, "event": "leased", "leases": leases}
    for part in (leases[:128], leases[128:]):
        yield {"time": now + 1, "event": "buffered", "leases": part}
    yield {"time": now + 2, "event": "trained", "leases": leases[::3], "reason": f"step {step}"}
    rest = [lease for i, lease in enumerate(leases) if i % 3]
    yield {"time": now + 2, "event": "dropped", "leases": rest, "reason": "left out of the batch"}


def consumed(step: int) -> dict[str, Any]:
    """Returns the groups that a step trains on."""
    groups = [
        {"lease_id": lease, "ordinal": lease, "prompt_id": lease * 7919 % 16384, "explorer": 1}
        | {"versions": [[[max(0, step - 2), 3]]] * 4}
        for lease in range((step - 1) * _LEASES, step * _LEASES, 3)
    ]
    return {"step": step, "groups": groups}


def spans(step: int) -> Iterator[dict[str, Any]]:
    """Yields the activities of a step."""
    now, of_step = _BEGAN + step * _SECS, [*range((step - 1) * _LEASES, step * _LEASES)]
    engine = {f"figure{i}": i * 1.1 for i in range(20)} | {"drafted_tokens": 0}
    known = {"step": step, "version": max(0, step - 2), "leases": of_step}
    made: list[tuple[str, str, float, float, dict[str, Any]]] = [
        ("explorer1", "rollout", 0.0, 2.0, known | {"tokens": 6100, "engine": engine}),
        ("explorer1", "score", 2.0, 2.3, {"leases": of_step}),
        ("explorer1", "insert", 2.3, 2.5, {"leases": of_step}),
        ("explorer1", "wait", 2.5, 3.0, {"reason": "synchronization", "for_whom": "the trainer"}),
        ("explorer1", "sync_collective", 3.0, 3.1, {"version": step}),
        ("trainer", "wait", 0.0, 2.5, {"reason": "experiences", "for_whom": "the explorer"}),
        (
            *("trainer", "train", 2.5, 3.6),
            {"step": step, "leases": of_step[::3], "tokens": 2014, "versions": [max(0, step - 2)]}
            | {"dropped": [one for i, one in enumerate(of_step) if i % 3]},
        ),
        ("trainer", "sync_collective", 3.0, 3.1, {"version": step}),
        ("trainer", "report", 3.6, 3.7, {"step": step}),
        ("master", "score", 2.0, 2.2, {"completions": 4 * _LEASES}),
    ]
    for role, kind, start, end, attributes in made:
        times = {"start": now + start, "end": now + end}
        yield {"role": role, "kind": kind, **times, "attributes": attributes}


def tokens(step: int) -> dict[str, Any]:
    """Returns the tokens that the explorer has generated until the end of a step."""
    groups = [[lease, 12, 0] for lease in range((step - 1) * _LEASES, step * _LEASES)]
    counts = {"generated": 12 * step * _LEASES, "grouped": 12 * step * _LEASES, "in_flight": 0}
    counts |= {"prompt_computed": 6 * step * _LEASES, "prompt_reused": 0, "given": 0}
    now = _BEGAN + step * _SECS + 2
    return {"time": now, "life": "a", **counts, "to": {}, "groups": groups, "devices": ["a:0"]}


def write(workdir: Workdir, steps: int) -> None:
    """Writes the records of a run."""
    workdir.spans.mkdir(parents=True)
    workdir.tokens.mkdir()
    roles = ("explorer1", "trainer", "master")
    with (
        open(workdir.ledger, "wb") as events,
        open(workdir.consumed, "wb") as trained,
        open(workdir.metrics, "wb") as metrics,
        open(workdir.tokens_of("explorer1"), "wb") as counts,
    ):
        files = {role: open(workdir.spans_of(role), "wb") for role in roles}  # noqa: SIM115
        for step in range(1, steps + 1):
            events.writelines(orjson.dumps(one) + b"\n" for one in ledger(step))
            trained.write(orjson.dumps(consumed(step)) + b"\n")
            counts.write(orjson.dumps(tokens(step)) + b"\n")
            values = {f"metric/{i}": step / (i + 1) for i in range(90)} | {"reward_mean": 0.5}
            line = {"phase": "rl", "step": step, "time": _BEGAN + step * _SECS, **values}
            metrics.write(orjson.dumps(line) + b"\n")
            for span in spans(step):
                files[span["role"]].write(orjson.dumps(span) + b"\n")
        for file in files.values():
            file.close()


def measure(workdir: Path, shows: bool) -> None:
    """Makes the report in this process, and prints what it took."""
    config = {**arithmetic.get_config().to_dict(), "workdir": str(workdir)}
    settings = read_settings(config)
    summary = Summary(RunResult(), Balance(0, 0, 0, 0, {}, 0, {}))
    before_bytes, started = psutil.Process().memory_info().rss, time.perf_counter()
    cpu_secs = time.process_time()
    told = final_report(settings, summary)
    secs, cpu_secs = time.perf_counter() - started, time.process_time() - cpu_secs
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if shows:
        print(told)
    more = f"{(peak_bytes - before_bytes) / _MB:.0f} MB more at most"
    print(f"{secs:.1f} s, of the CPU {cpu_secs:.1f} s, {more}")


def main() -> None:
    """Writes the records, and measures in another process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--workdir", type=Path)
    parser.add_argument("--shows", action="store_true")
    parser.add_argument("--measures", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measures:
        measure(arguments.workdir, arguments.shows)
        return
    with tempfile.TemporaryDirectory() as folder:
        workdir = arguments.workdir or Path(folder, "run")
        if not workdir.exists():
            write(Workdir(workdir), arguments.steps)
        size = sum(path.stat().st_size for path in workdir.rglob("*.jsonl"))
        print(f"{size / _MB:.0f} MB of records", flush=True)
        shows = ["--shows"] if arguments.shows else []
        command = [sys.executable, __file__, "--measures", f"--workdir={workdir}", *shows]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
