"""Records of runs beside what a schedule promises: a bound, the same bits, deaths or not.

    python benchmarks/guarantees.py [--seeds=61,62,63] [--cases=0,1,2] [--steps=40]
        [--results=docs/evidence/guarantees.jsonl]
    python benchmarks/guarantees.py --report

Makes a run of `tests/runs/quick.py` for each case and seed, each role in a process of its own. In
some cases processes are killed at random (`launcher chaos`). A run adds a line
to the results: the greatest staleness of a token and the bound, the digest of all parameters at the
end, the digest of all versions, and the faults that `audit` finds in its records. A run that has a
line is not repeated.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl_sync.checkpoints.audit import audit
from rl_sync.launcher import config_file
from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines
from rl_sync.records.metrics import read_metrics
from rl_sync.records.run_outcome import read_outcome
from rl_sync.records.run_records import RunRecords
from rl_sync.settings.config_reading import read_settings
from rl_sync.workdir import Workdir

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "evidence" / "guarantees.jsonl"
CONFIG = "tests/runs/quick.py"
_KILL_EVERY_SECS = 12.0


class Case(NamedTuple):
    """Runs of one kind.

    Attributes:
      mode: `sync.mode`, or custom:INTERVAL:OFFSET.
      transfer: `sync.transfer`.
      killed: whether processes are killed at random.
    """

    mode: str
    transfer: str
    killed: bool = False

    def flags(self) -> list[str]:
        """Returns the flags of its settings."""
        mode, *numbers = self.mode.split(":")
        flags = [f"--config.sync.mode={mode}", f"--config.sync.transfer={self.transfer}"]
        for name, number in zip(("interval", "offset"), numbers, strict=False):
            flags.append(f"--config.sync.{name}={number}")
        return flags


CASES = (
    Case("synchronous", "collective"),
    Case("synchronous", "checkpoint"),
    Case("synchronous", "server"),
    Case("synchronous", "server", killed=True),
    Case("one_step_off_policy", "collective"),
    Case("one_step_off_policy", "checkpoint"),
    Case("one_step_off_policy", "server"),
    Case("one_step_off_policy", "checkpoint", killed=True),
    Case("custom:2:3", "checkpoint"),
    Case("custom:2:3", "server"),
    Case("custom:2:3", "server", killed=True),
    Case("asynchronous", "checkpoint"),
    Case("asynchronous", "server", killed=True),
    Case("multi_explorer", "server"),
    Case("multi_explorer", "checkpoint", killed=True),
)


def made(case: Case, seed: int, steps: int) -> dict[str, Any]:
    """Makes one run; returns its line.

    Raises:
      SystemExit: the run failed.
    """
    with tempfile.TemporaryDirectory() as directory:
        workdir = Path(directory, "run")
        command = [sys.executable, "-m", "launcher"]
        if case.killed:
            command += ["chaos", f"--every={_KILL_EVERY_SECS:g}", f"--seed={seed}"]
        command += [f"--config={CONFIG}", f"--config.seed={seed}", f"--config.workdir={workdir}"]
        command += [f"--config.trainer.steps={steps}", "--config.checkpoint.every_steps=2"]
        command += ["--config.replay.backend=embedded", *case.flags()]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{case}, seed {seed}, failed:\n{done.stdout}\n{done.stderr}")
        kills = re.search(r"^(\d+) disturbances;", done.stdout, re.MULTILINE)
        settings = read_settings(config_file.of_run(workdir).to_dict())
        outcome, records = read_outcome(workdir), RunRecords(workdir)
        records.read(rollouts=False)
        assert outcome is not None
        assert records.summary is not None
        steps_of = read_metrics(workdir, "rl")
        faults = audit(settings, workdir)
        versions = {one["version"]: one["digest"] for one in _published(workdir)}
        return {
            **case._asdict(),
            "seed": seed,
            "steps": [one["step"] for one in steps_of],
            "bound": settings.schedule.staleness_bound,
            "staleness": [one["staleness_max"] for one in steps_of],
            "digest": outcome.digest,
            "versions": hashlib.sha256(repr(sorted(versions.items())).encode()).hexdigest(),
            "kills": int(kills[1]) if kills else 0,
            "effective_share": round(records.summary.lost.effective_share, 4),
            "faults": faults,
        }


def _published(workdir: Path) -> list[dict[str, Any]]:
    return [one for one in read_json_lines(Workdir(workdir).published) if "version" in one]


def table(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Writes a line for each mode as a Markdown table."""
    heads = ["mode", "runs", "transfers", "processes killed", "bound", "greatest staleness"]
    heads += ["digests of a seed", "faults in records"]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    by_mode: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for line in lines:
        by_mode[line["mode"]].append(line)
    for mode, of_mode in by_mode.items():
        name, *numbers = mode.split(":")
        shown = f"`{name}`" + (f", interval {numbers[0]}, offset {numbers[1]}" if numbers else "")
        cells = [shown, str(len(of_mode)), str(len({one["transfer"] for one in of_mode}))]
        cells.append(str(sum(one["kills"] for one in of_mode)))
        (bound,) = {one["bound"] for one in of_mode}
        cells += [str(bound), f"{max(max(one['staleness']) for one in of_mode):g}"]
        cells.append(_digests(of_mode))
        cells.append(str(sum(len(one["faults"]) for one in of_mode)))
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _digests(lines: Sequence[dict[str, Any]]) -> str:
    """Says how many digests the runs of a seed have; only exact pulls promise one."""
    if lines[0]["mode"] in ("asynchronous", "multi_explorer"):
        return "not promised"
    found = collections.defaultdict(set)
    for line in lines:
        found[line["seed"]].add((line["digest"], line["versions"]))
    counts = sorted({len(digests) for digests in found.values()})
    return " to ".join(map(str, counts))


def main() -> None:
    """Makes the runs that have no result yet, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="61,62,63")
    parser.add_argument("--cases", default="", help="numbers of cases, from 0; all by default")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="only report the results so far")
    arguments = parser.parse_args()
    chosen = [CASES[int(one)] for one in arguments.cases.split(",") if one] or CASES
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    writer = JsonLinesWriter(arguments.results)
    lines = read_json_lines(arguments.results)
    known = {(Case(one["mode"], one["transfer"], one["killed"]), one["seed"]) for one in lines}
    seeds = [int(one) for one in arguments.seeds.split(",")]
    for seed, case in itertools.product(seeds, () if arguments.report else chosen):
        if (case, seed) not in known:
            line = made(case, seed, arguments.steps)
            writer.write(line)
            print(f"# {case}, seed {seed}: {line['digest']}, {line['kills']} killed", flush=True)
    writer.close()
    print("\n".join(table(read_json_lines(arguments.results))))


if __name__ == "__main__":
    main()
