"""Predicted and real speed and staleness of twelve schedules, on seeds that nothing was tuned on.

    python benchmarks/tune.py [--config=configs/long_tail.py] [--seeds=300,301,302] [--steps=30]
        [--schedules=1,4,8] [--model=policy] [--also=SETTING=VALUE …]
        [--results=runs/tune-long_tail.jsonl]
    python benchmarks/tune.py --report [...]

For each seed, one short run in the mode `synchronous` is measured, and all schedules are predicted
from its records. Then each schedule is run for real, one run at a time. Every run adds a line to
the results, and a run that has a line is not repeated, so the command can be stopped at any time.
All runs transfer weights by checkpoint and take no evaluations or snapshots on the way. A first
run, which does not count, compiles the programs for all shapes of batches.

With `--model` the runs begin with an exported policy, in place of SFT. `--also` changes a setting
of all runs.

The table has, for each schedule, the median over the seeds of trainer steps an hour, of generated
tokens a second and of mean staleness, predicted and real, and the greatest error of a seed. What
a policy learns changes the length of its completions, differently in each run, which no schedule
can predict: that is in the steps, and not in the tokens. *Regret* is what the schedule that
is predicted to be the fastest loses against the fastest real one. Runs need a machine without other
work: the predictions can only be as good as the measured times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from made_runs import predictions

from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines
from rl_sync.records.span_reader import read_spans
from rl_sync.simulation.speed.prediction import figures_of

ROOT = Path(__file__).resolve().parents[1]
MEASURED, TOKENS = "measured", "tokens"
WITHIN, REGRET = 0.10, 0.05
COMMON = {
    "sync.transfer": "checkpoint",
    "evaluation.every_steps": 0,
    "checkpoint.every_steps": 0,
    "launch.compile_ahead": 2,
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "synchronous": {"sync.mode": "synchronous"},
    "synchronous, interval 2": {"sync.mode": "synchronous", "sync.interval": 2},
    "synchronous, interval 4": {"sync.mode": "synchronous", "sync.interval": 4},
    "one-step off-policy": {"sync.mode": "one_step_off_policy"},
    "offset 2": {"sync.mode": "custom", "sync.interval": 1, "sync.offset": 2},
    "offset 4": {"sync.mode": "custom", "sync.interval": 1, "sync.offset": 4},
    "interval 2, offset 2": {"sync.mode": "custom", "sync.interval": 2, "sync.offset": 2},
    "asynchronous, bound 1": {"sync.mode": "asynchronous", "sync.max_staleness": 1},
    "asynchronous, bound 2": {"sync.mode": "asynchronous", "sync.max_staleness": 2},
    "asynchronous, bound 4": {"sync.mode": "asynchronous", "sync.max_staleness": 4},
    "asynchronous, interval 2": {
        "sync.mode": "asynchronous", "sync.interval": 2, "sync.max_staleness": 3,
    },
    "two explorers, bound 2": {
        "sync.mode": "multi_explorer", "explorer.count": 2, "sync.max_staleness": 2,
    },
}  # fmt: skip
MEASURED_MODE = {"sync.mode": "synchronous"}


def run(
    arguments: argparse.Namespace, seed: int, changes: Mapping[str, Any], workdir: Path
) -> None:
    """Makes a run.

    Raises:
      SystemExit: it failed.
    """
    flags = {**COMMON, **changes, "seed": seed, "workdir": workdir}
    flags["trainer.steps"] = arguments.steps
    if arguments.model is not None:
        flags |= {"model.path": arguments.model.resolve(), "sft.steps": 0}
    command = [sys.executable, "-m", "launcher", f"--config={arguments.config}"]
    command += [f"--config.{name}={value}" for name, value in flags.items()]
    command += [f"--config.{change}" for change in arguments.also]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{changes}, seed {seed}, failed:\n{done.stdout}\n{done.stderr}")


def real(workdir: Path) -> dict[str, float]:
    """Returns the figures of a real run."""
    return figures_of(read_spans(workdir))._asdict()


def report(lines: Sequence[dict[str, Any]], seeds: Sequence[int]) -> list[str]:
    """Writes the table, and how many predictions and choices are good."""
    predicted = {line["seed"]: line["figures"] for line in lines if line["name"] == MEASURED}
    found = {(line["name"], line["seed"]): line["figures"] for line in lines}
    figures = {"steps_an_hour": "steps/h", TOKENS: "tokens/s", "mean_staleness": "staleness"}
    heads = [f"{name}, predicted | real | error" for name in figures.values()]
    rows = [f"| schedule | {' | '.join(heads)} |", "|---" * (1 + 3 * len(figures)) + "|"]
    good = dict.fromkeys(figures, 0)
    count = 0
    for name in SCHEDULES:
        pairs = [
            (predicted[seed][name], found[name, seed])
            for seed in seeds
            if seed in predicted and (name, seed) in found
        ]
        if not pairs:
            continue
        cells = [name]
        count += len(pairs)
        for figure in figures:
            guessed, measured = ([_figure(one[side], figure) for one in pairs] for side in (0, 1))
            errors = [_error(a, b) for a, b in zip(guessed, measured, strict=True)]
            good[figure] += sum(abs(error) <= WITHIN for error in errors)
            middle = [statistics.median(values) for values in (guessed, measured)]
            digits = ".2f" if figure == "mean_staleness" else ",.0f"
            worst = max(errors, key=abs)
            cells += [f"{middle[0]:{digits}}", f"{middle[1]:{digits}}", f"{worst:+.0%}"]
        rows.append("| " + " | ".join(cells) + " |")
    shares = ", ".join(f"{figures[name]}: {found} of {count}" for name, found in good.items())
    rows.append(f"\nWithin {WITHIN:.0%}: {shares}.")
    for seed in seeds:
        speeds = {
            name: found[name, seed]["steps_an_hour"] for name in SCHEDULES if (name, seed) in found
        }
        if seed in predicted and speeds:
            chosen = max(speeds, key=lambda name: predicted[seed][name]["steps_an_hour"])
            best = max(speeds, key=lambda name: speeds[name])
            regret = 1 - speeds[chosen] / speeds[best]
            rows.append(
                f"Seed {seed}: predicted to be the fastest: {chosen}; really the fastest: {best};"
                f" regret {regret:.1%} (at most {REGRET:.0%} wanted)."
            )
    return rows


def _figure(figures: Mapping[str, float], name: str) -> float:
    """Returns a figure of a run; the tokens a second follow from two of them."""
    if name == TOKENS:
        return figures["tokens_a_step"] * figures["steps_an_hour"] / 3600
    return figures[name]


def _error(guessed: float, measured: float) -> float:
    """Returns the relative error; of a staleness of nearly 0, the difference."""
    return (guessed - measured) / measured if measured > 0.1 else guessed - measured


def main() -> None:
    """Makes the runs that have no result yet, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/long_tail.py")
    parser.add_argument("--seeds", default="300,301,302")
    parser.add_argument("--steps", type=int, default=30, help="trainer steps of each run")
    parser.add_argument("--schedules", default="", help="numbers from 1; all by default")
    parser.add_argument("--model", type=Path, help="an exported policy, to begin without SFT")
    parser.add_argument("--also", action="append", default=[], help="SETTING=VALUE of all runs")
    parser.add_argument("--results", type=Path, help="default: runs/tune-<config>.jsonl")
    parser.add_argument("--report", action="store_true", help="only report the results so far")
    arguments = parser.parse_args()
    seeds = [*map(int, arguments.seeds.split(","))]
    results = arguments.results or ROOT / "runs" / f"tune-{Path(arguments.config).stem}.jsonl"
    names = [*SCHEDULES]
    chosen = [names[int(one) - 1] for one in arguments.schedules.split(",") if one] or names
    results.parent.mkdir(parents=True, exist_ok=True)
    writer = JsonLinesWriter(results)
    done = {(line["name"], line["seed"]) for line in read_json_lines(results)}
    todo = [
        (name, seed)
        for seed in seeds
        for name in (MEASURED, *chosen)
        if (name, seed) not in done and not arguments.report
    ]
    for i, (name, seed) in enumerate(todo):
        changes = MEASURED_MODE if name == MEASURED else SCHEDULES[name]
        with tempfile.TemporaryDirectory() as folder:
            if not i and not done:
                run(arguments, seed, changes, Path(folder, "compiles"))
            workdir = Path(folder, "run")
            run(arguments, seed, changes, workdir)
            made: Any
            if name == MEASURED:
                made = predictions(workdir, SCHEDULES, arguments.steps, {"explorer.count": None})
            else:
                made = real(workdir)
        writer.write({"name": name, "seed": seed, "steps": arguments.steps, "figures": made})
        print(f"# seed {seed}, {name}: {json.dumps(made)[:200]}", flush=True)
    writer.close()
    print("\n".join(report(read_json_lines(results), seeds)))


if __name__ == "__main__":
    main()
