"""A config over seeds and modes: the results and the curves of each run.

    python benchmarks/seeds.py [--config=configs/arithmetic.py] [--seeds=100:111]
        [--modes=synchronous,one_step_off_policy,asynchronous,multi_explorer,custom:4:0,custom:1:4]
        [--every=10] [--results=runs/seeds-arithmetic.jsonl] [--set=SETTING=VALUE ...]
    python benchmarks/seeds.py --report [...]

Runs the launcher once for each seed and mode, one run at a time, and adds a line to the results. A
run that has a line is not repeated, so the command can be stopped at any time, and resumes where it
was. `custom:4:0` is sync.mode=custom with interval 4 and offset 0, and `asynchronous:8` has
sync.max_staleness=8.

Held-out accuracy is measured every few trainer steps (`--every`), inside the run. At the end, or
with `--report`, the command prints a table of the least, the median and the greatest of each mode.
It also draws curves beside the results: accuracy, reward, entropy, the share of groups without
spread and the gradient's norm. They are drawn over trainer steps, accuracy also over the seconds of
the RL phase, as a mean over seeds with the least and the greatest.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines
from rl_sync.records.metrics import read_metrics
from rl_sync.schedule import MODES

ROOT = Path(__file__).resolve().parents[1]
CASES = [mode for mode in MODES if mode != "custom"] + ["custom:4:0", "custom:1:4"]
CURVES = ("reward_mean", "entropy", "groups_without_spread", "gradient_norm")
COLUMNS: dict[str, Callable[[dict[str, Any]], float]] = {
    "accuracy before RL, %": lambda line: 100 * line["accuracy"][0],
    "accuracy after RL, %": lambda line: 100 * line["accuracy"][-1],
    "RL phase, s": lambda line: line["secs"][-1],
    "whole command, s": lambda line: line["total_secs"],
}
COLOURS = ("#3F5F7F", "#57A773", "#D9383A", "#8E4EC6", "#E0A030", "#808080")


class Case(NamedTuple):
    """One run.

    Attributes:
      config: the config file.
      mode: a mode, custom:INTERVAL:OFFSET, or MODE:BOUND with `sync.max_staleness`.
      seed: the run's seed.
      settings: other settings, as SETTING=VALUE.
    """

    config: str
    mode: str
    seed: int
    settings: tuple[str, ...]

    def flags(self) -> list[str]:
        """Returns the command line of the run, without its work directory."""
        mode, *numbers = self.mode.split(":")
        flags = [f"--config={self.config}", f"--config.sync.mode={mode}"]
        names = ("interval", "offset") if mode == "custom" else ("max_staleness",)
        for name, number in zip(names, numbers, strict=False):
            flags.append(f"--config.sync.{name}={number}")
        return [*flags, f"--config.seed={self.seed}", *(f"--config.{one}" for one in self.settings)]


def main() -> None:
    """Makes the runs that have no result yet, then reports."""
    arguments = _arguments()
    writer = JsonLinesWriter(arguments.results)  # Creates the file if it is missing.
    cases = [
        Case(arguments.config, mode, seed, tuple(arguments.set))
        for seed, mode in itertools.product(arguments.seeds, arguments.modes)
    ]
    done = {case_of(line) for line in read_json_lines(arguments.results)}
    for case in cases:
        if case not in done and not arguments.report:
            writer.write(run(case, arguments.every))
    writer.close()
    lines = [line for line in read_json_lines(arguments.results) if case_of(line) in cases]
    if not lines:
        sys.exit(f"{arguments.results} has no results of these runs yet.")
    print("\n".join(table(lines, arguments.modes)))
    picture = arguments.results.with_suffix(".png")
    figure(lines, arguments.modes).savefig(picture, dpi=120, metadata={"Software": None})
    print(f"\n{picture}")


def run(case: Case, every_steps: int, curves: Sequence[str] = CURVES) -> dict[str, Any]:
    """Makes one run; returns its line of the results.

    Args:
      every_steps: trainer steps between evaluations.
      curves: metrics of trainer steps that the line has.

    Raises:
      SystemExit: the run failed.
    """
    with tempfile.TemporaryDirectory() as directory:
        workdir = Path(directory, "run")
        command = [sys.executable, "-m", "launcher", *case.flags()]
        command += [f"--config.workdir={workdir}", "--config.checkpoint.every_steps=0"]
        command += [f"--config.evaluation.every_steps={every_steps}"]
        command += ["--config.evaluation.by=trainer"]  # At exactly these steps, in every mode.
        started = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        total_secs = time.monotonic() - started
        if done.returncode:
            sys.exit(f"{case} failed:\n{done.stdout}\n{done.stderr}")
        evaluations, steps = read_metrics(workdir, "evaluation"), read_metrics(workdir, "rl")
    line = {
        **case._asdict(),
        "total_secs": total_secs,
        "steps": [one["step"] for one in evaluations],
        "secs": [one["time"] - evaluations[0]["time"] for one in evaluations],
        "accuracy": [one["accuracy"] for one in evaluations],
        **{name: [one.get(name) for one in steps] for name in curves},
    }
    before, after = (100 * line["accuracy"][i] for i in (0, -1))
    print(
        f"# {case.mode}, seed {case.seed}: {before:.1f} to {after:.1f} %, {total_secs:.0f} s",
        flush=True,
    )
    return line


def table(lines: Sequence[dict[str, Any]], modes: Sequence[str]) -> list[str]:
    """Writes the least, the median and the greatest of each mode as a Markdown table."""
    rows = [table_row(["mode", "seeds", *COLUMNS]), "|---" * (len(COLUMNS) + 2) + "|"]
    for mode in modes:
        if of_mode := [line for line in lines if line["mode"] == mode]:
            cells = [spread([value(line) for line in of_mode]) for value in COLUMNS.values()]
            rows.append(table_row([mode, str(len(of_mode)), *cells]))
    return rows


def spread(numbers: Sequence[float]) -> str:
    least, middle, greatest = min(numbers), statistics.median(numbers), max(numbers)
    return f"{least:.1f} / {middle:.1f} / {greatest:.1f}"


def table_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def figure(lines: Sequence[dict[str, Any]], modes: Sequence[str]) -> Figure:
    """Draws the curves of all modes: a mean over seeds, in a band from least to greatest."""
    panels = ("accuracy", "accuracy over seconds", *CURVES)
    drawing = Figure(figsize=(15, 8), layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.subplots(2, 3).flat
    for axis, name in zip(axes, panels, strict=True):
        for mode, colour in zip(modes, itertools.cycle(COLOURS), strict=False):
            if of_mode := [line for line in lines if line["mode"] == mode]:
                draw(axis, of_mode, name, colour, mode)
        axis.set_title(name.replace("_", " "))
        axis.set_xlabel("seconds of the RL phase" if "seconds" in name else "trainer steps")
    drawing.axes[0].legend(fontsize=8)
    return drawing


def draw(axis: Axes, lines: Sequence[dict[str, Any]], name: str, colour: str, label: str) -> None:
    """Draws a curve of some runs into a panel: their mean, in a band from least to greatest."""
    x, curves = _curves(lines, name)
    axis.plot(x, curves.mean(0), color=colour, label=label, linewidth=1.2)
    axis.fill_between(x, curves.min(0), curves.max(0), color=colour, alpha=0.12)


def _curves(lines: Sequence[dict[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the x coordinates [X] of the runs' curves, and the curves [runs, X]."""
    if name == "accuracy over seconds":
        x = np.linspace(0, max(line["secs"][-1] for line in lines), 100)
        return x, np.array([np.interp(x, line["secs"], line["accuracy"]) for line in lines])
    if name == "accuracy":
        return np.array(lines[0]["steps"]), np.array([line[name] for line in lines])
    curves = np.array([line[name] for line in lines])
    return np.arange(1, curves.shape[1] + 1), curves


def case_of(line: dict[str, Any]) -> Case:
    return Case(line["config"], line["mode"], line["seed"], tuple(line["settings"]))


def seeds_of(text: str) -> list[int]:
    first, colon, last = text.partition(":")
    return list(range(int(first), int(last) + 1)) if colon else [int(s) for s in text.split(",")]


def _modes(text: str) -> list[str]:
    for mode in text.split(","):
        if mode.partition(":")[0] not in MODES:
            raise argparse.ArgumentTypeError(f"{mode!r} is not one of {', '.join(CASES)}")
    return text.split(",")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/arithmetic.py")
    parser.add_argument("--seeds", type=seeds_of, default=list(range(100, 112)))
    parser.add_argument("--modes", type=_modes, default=CASES)
    parser.add_argument("--every", type=int, default=10, help="trainer steps between evaluations")
    parser.add_argument("--results", type=Path, help="default: runs/seeds-CONFIG.jsonl")
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE")
    parser.add_argument("--report", action="store_true", help="only report the results so far")
    arguments = parser.parse_args()
    if arguments.results is None:
        arguments.results = ROOT / "runs" / f"seeds-{Path(arguments.config).stem}.jsonl"
    return arguments


if __name__ == "__main__":
    main()
