"""Cost of evaluations by an explorer beside its rollouts: runs with and without them, in turns.

    python benchmarks/evaluations.py [--config=configs/arithmetic.py] [--steps=40] [--every=10]
        [--seeds=1,2,3]

Each run is asynchronous, with one explorer. For each seed and kind it prints the seconds of the RL
phase, the tokens that were generated a second, the time in which rollouts stood still for
evaluations, in seconds and as a share of the rollouts, and the seconds for each version; the first
compiles programs. At the end it prints the least, the median and the greatest share of all seeds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rl_sync.records.metrics import read_metrics
from rl_sync.records.span_reader import read_spans
from rl_sync.records.summary import summarize

KINDS: Mapping[str, Mapping[str, object]] = {
    "without": {"evaluation.every_steps": 0},
    "with": {"evaluation.by": "explorers"},
}


def run(arguments: argparse.Namespace, kind: str, seed: int) -> float:
    """Makes a run, and prints its line; returns the share of the rollouts that was lost."""
    with tempfile.TemporaryDirectory() as workdir:
        flags = {
            "sync.mode": "asynchronous",
            "trainer.steps": arguments.steps,
            "evaluation.every_steps": arguments.every,
            "checkpoint.every_steps": 0,
            "seed": seed,
            "workdir": workdir,
            **KINDS[kind],
        }
        command = [sys.executable, "-m", "rl_sync.launcher", f"--config={arguments.config}"]
        command += [f"--config.{name}={value}" for name, value in flags.items()]
        command += [f"--config.{change}" for change in arguments.also]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr}")
        summary = summarize(read_spans(Path(workdir)))
        lines = read_metrics(workdir, "evaluation")
    lost = [
        f"version {line['step']} {line['rollouts_lost_secs']:.2f} s"
        for line in lines
        if "rollouts_lost_secs" in line
    ]
    share = summary.evaluating_secs / summary.rollout_secs
    print(
        f"seed {seed}, {kind}: RL {summary.wall_secs:.1f} s,"
        f" {summary.rollout_tokens_per_sec:,.0f} tokens/s,"
        f" rollouts stood still for {summary.evaluating_secs:.2f} s ({share:.1%}):"
        f" {', '.join(lost) or 'no evaluations'}",
        flush=True,
    )
    return share


def main() -> None:
    """Makes the runs of each seed in turns, and prints the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/arithmetic.py")
    parser.add_argument("--steps", type=int, default=40, help="trainer steps of a run")
    parser.add_argument("--every", type=int, default=10, help="trainer steps between evaluations")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--also", action="append", default=[], help="another setting, NAME=VALUE")
    arguments = parser.parse_args()
    shares = []
    for seed in map(int, arguments.seeds.split(",")):
        found = {kind: run(arguments, kind, seed) for kind in KINDS}
        shares.append(found["with"])
    print(
        "rollouts lost, least / median / greatest:"
        f" {min(shares):.1%} / {statistics.median(shares):.1%} / {max(shares):.1%}"
    )


if __name__ == "__main__":
    main()
