"""Runs on machines that share nothing but a network, over lines of several lengths.

    python benchmarks/machines.py [--config=configs/long_tail.py] [--model=policy] [--steps=20]
        [--lines=0,1,4] [--runs=1,2] [--seeds=41,42,43] [--cut=5,120]
        [--results=runs/machines.jsonl]

Each machine is a network namespace with an address of its own, a file system in which the
launcher's directories are empty, and another user. The first machine has the launcher, the master,
the replay server and the trainer; each explorer has a machine, which joins the run, and a line to
all others (see `long_lines`). It takes root.

For each seed and mode a run over plain loopback comes first. From its records every line's speed is
predicted, as `tune --network` does. A line in the table has trainer steps an hour, predicted and
real. With `--cut` the first explorer's line is cut for some seconds after half of the steps, in the
asynchronous mode.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from long_lines import Line, LineNetwork, long_lines
from made_runs import join_words, joined_flags, launched, settings_of

from rl_sync.checkpoints.audit import audit
from rl_sync.plan.version_bytes import travelling_bytes
from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines
from rl_sync.records.metrics import read_metrics
from rl_sync.records.span_reader import read_spans
from rl_sync.simulation.speed.measured_work import read_work
from rl_sync.simulation.speed.network_link import NetworkLink
from rl_sync.simulation.speed.prediction import figures_of, predict
from rl_sync.simulation.speed.speed_plan import plan_of

ROOT = Path(__file__).resolve().parents[1]
PORT = 7301
LINES = (
    Line(0.001, 1e9),
    Line(0.02, 1e9),
    Line(0.1, 1e9),
    Line(0.02, 1e8),
    Line(0.02, 1e9, 0.001),
    Line(0.02, 1e9, 0.01),
)
RUNS: dict[str, dict[str, Any]] = {
    "synchronous, collective": {"sync.mode": "synchronous"},
    "one-step, collective": {"sync.mode": "one_step_off_policy"},
    "one-step, server": {"sync.mode": "one_step_off_policy", "sync.transfer": "server"},
    "asynchronous, server": {
        "sync.mode": "asynchronous", "sync.transfer": "server", "sync.max_staleness": 2,
    },
    "two explorers, server": {
        "sync.mode": "multi_explorer", "sync.transfer": "server", "sync.max_staleness": 2,
        "explorer.count": 2,
    },
}  # fmt: skip
COMMON = {
    "evaluation.every_steps": 0,
    "checkpoint.every_steps": 0,
    "launch.compile_ahead": 2,
}
SIMULATED_SEEDS = range(4)
PLAIN = "loopback"


def run(
    arguments: argparse.Namespace,
    changes: dict[str, Any],
    seed: int,
    network: LineNetwork,
    folder: Path,
    cut_secs: float = 0.0,
) -> str:
    """Makes a run; returns the launcher's output.

    Raises:
      SystemExit: it failed.
    """
    workdir = folder / "run"
    names = [f"explorer{number}" for number in range(1, changes.get("explorer.count", 1) + 1)]
    flags = {**COMMON, **changes, "seed": seed, "workdir": workdir}
    flags["trainer.steps"] = arguments.steps
    first = network.machines[0]
    flags |= joined_flags(first, PORT, names)
    if arguments.model is not None:
        flags |= {"model.path": arguments.model.resolve(), "sft.steps": 0}
    given = [f"--config={arguments.config}"]
    given += [f"--config.{name}={value}" for name, value in flags.items()]
    given += [f"--config.{change}" for change in arguments.also]
    launcher = launched(first, given, subprocess.PIPE)
    # Nothing of the run's directories, and another user, in an empty directory.
    alone = "mount -t tmpfs none {0} && cd {0}".format(shlex.quote(str(folder)))
    alone += ' && TMPDIR=/tmp exec unshare --user --map-user=1234 "$@"'
    joining = [
        launched(
            machine,
            join_words(name, first, PORT),
            (folder / f"{name}.joins.log").open("w"),
            before=("unshare", "--mount", "sh", "-c", alone, "sh"),
        )
        for machine, name in zip(network.machines[1:], names, strict=False)
    ]
    if cut_secs:
        threading.Thread(
            target=_cut, args=(network, workdir, arguments.steps // 2, cut_secs), daemon=True
        ).start()
    output, _ = launcher.communicate()
    for one in joining:
        try:
            one.wait(30)
        except subprocess.TimeoutExpired:
            one.kill()
    if launcher.returncode:
        logs = [path.read_text() for path in sorted(folder.glob("*.joins.log"))]
        sys.exit("\n".join([f"{changes}, seed {seed}, failed:\n{output}", *logs]))
    settings = settings_of(workdir)
    if faults := audit(settings, workdir):
        sys.exit(f"{changes}, seed {seed}: {faults}")
    return output


def _cut(network: LineNetwork, workdir: Path, step: int, secs: float) -> None:
    while True:
        time.sleep(0.1)
        try:
            if any(one["step"] >= step for one in read_metrics(workdir, "rl")):
                network.cut(1, secs)
                return
        except OSError:
            continue


def prediction(workdir: Path, line: Line, steps: int) -> dict[str, float]:
    """Predicts a run over a line from the records of the same run over loopback."""
    settings = settings_of(workdir)
    found = read_work(str(workdir), settings, os.cpu_count())
    link = NetworkLink(line.bits_per_sec / 8, line.latency_secs)
    work = link.carrying(found.work, travelling_bytes(settings))
    plan = plan_of(settings, steps=steps, in_parts=found.in_parts)
    return predict(plan, work, SIMULATED_SEEDS)._asdict()


def report(results: Sequence[dict[str, Any]]) -> list[str]:
    """Writes the table: median of the seeds, and the greatest error of a prediction."""
    names = list(dict.fromkeys(one["run"] for one in results))
    lines = list(dict.fromkeys(one["line"] for one in results))
    rows = ["| steps an hour, predicted and real | " + " | ".join(names) + " |"]
    rows.append("|---" * (1 + len(names)) + "|")
    for line in lines:
        cells = []
        for name in names:
            found = [one for one in results if (one["run"], one["line"]) == (name, line)]
            real = [one["real"]["steps_an_hour"] for one in found]
            if not real:
                cells.append("")
                continue
            if line == PLAIN:
                cells.append(f"{statistics.median(real):,.0f}")
                continue
            guessed = [one["predicted"]["steps_an_hour"] for one in found]
            errors = [a / b - 1 for a, b in zip(guessed, real, strict=True)]
            middle = statistics.median(guessed), statistics.median(real)
            cells.append(f"{middle[0]:,.0f}, {middle[1]:,.0f} ({max(errors, key=abs):+.0%})")
        rows.append(f"| {line} | " + " | ".join(cells) + " |")
    return rows


def main() -> None:
    """Makes the runs that have no result yet, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/long_tail.py")
    parser.add_argument("--model", type=Path, help="an exported policy, to begin without SFT")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", default="41,42,43")
    parser.add_argument("--lines", default="", help="numbers of lines, from 0; all by default")
    parser.add_argument("--runs", default="", help="numbers of runs, from 0; all by default")
    parser.add_argument("--cut", default="", help="seconds for which a line is cut")
    parser.add_argument("--also", action="append", default=[], help="SETTING=VALUE of all runs")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "machines.jsonl")
    parser.add_argument("--keep", type=Path, help="keep the work directories in this directory")
    arguments = parser.parse_args()
    lines = [LINES[int(one)] for one in arguments.lines.split(",") if one] or [*LINES]
    every = [*RUNS]
    names = [every[int(one)] for one in arguments.runs.split(",") if one] or every
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    writer = JsonLinesWriter(arguments.results)
    known = {(one["run"], one["line"], one["seed"]) for one in read_json_lines(arguments.results)}

    def made(name: str, seed: int, line: Line, told: str, cut_secs: float = 0.0) -> None:
        if (name, told, seed) in known:
            return
        changes = RUNS[name]
        count = 1 + changes.get("explorer.count", 1)
        with tempfile.TemporaryDirectory() as temporary, long_lines(count, line, seed) as network:
            folder = (
                temporary
                if arguments.keep is None
                else arguments.keep / re.sub(r"\W+", "-", f"{name} {told}")
            )
            folder = Path(folder)
            folder.mkdir(parents=True, exist_ok=True)
            output = run(arguments, changes, seed, network, folder, cut_secs)
            result = {"run": name, "line": told, "seed": seed}
            result["real"] = figures_of(read_spans(folder / "run"))._asdict()
            result["lost"] = output.count("is lost: ")
            if told == PLAIN:
                result["predictions"] = {
                    str(one): prediction(folder / "run", one, arguments.steps) for one in LINES
                }
            elif cut_secs == 0:
                (plain,) = [
                    one
                    for one in read_json_lines(arguments.results)
                    if (one["run"], one["line"], one["seed"]) == (name, PLAIN, seed)
                ]
                result["predicted"] = plain["predictions"][told]
        writer.write(result)
        print(f"# {name}, {told}, seed {seed}: {json.dumps(result['real'])[:120]}", flush=True)

    for seed in map(int, arguments.seeds.split(",")):
        for name in names:
            made(name, seed, Line(), PLAIN)
            for line in lines:
                made(name, seed, line, str(line))
        for secs in [float(one) for one in arguments.cut.split(",") if one]:
            made("asynchronous, server", seed, LINES[0], f"cut for {secs:g} s", secs)
    writer.close()
    results = read_json_lines(arguments.results)
    print("\n".join(report([one for one in results if "cut" not in one["line"]])))
    for one in results:
        if "cut" in one["line"]:
            print(f"{one['line']}, seed {one['seed']}: lost {one['lost']} times, all records whole")


if __name__ == "__main__":
    main()
