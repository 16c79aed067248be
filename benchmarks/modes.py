"""The same work in the four modes, side by side.

    python benchmarks/modes.py [--steps=60] [--rounds=1] [--config=configs/arithmetic.py]
                               [--timelines=docs]

Runs the config in each mode, in turns, and prints a table: seconds of the RL phase and of the whole
run; tokens generated and trained on a second; the share of the RL phase that explorers and trainer
were idle; staleness; accuracy. *Ideal* is the longer of total rollout and total train time over
their sum, which no schedule can go below while each role has processors of its own. *Achieved* is
the phase's length over that sum. Processes that share processors take longer for the same work when
they overlap, so the seconds of rollout and train are printed too. `--timelines` is where a timeline
of each mode's first run is drawn.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rl_sync.observe.metrics import read_metrics
from rl_sync.observe.spans import read_spans
from rl_sync.observe.summary import RunSummary, summarize
from rl_sync.observe.timeline import draw_timeline
from rl_sync.schedule import MODES

ROOT = Path(__file__).resolve().parents[1]
DRAWN_STEPS = (40, 44)
NAMES = [mode for mode in MODES if mode != "custom"]


class Outcome(NamedTuple):
    """One run: how long it took as a whole, what its spans say, and how well it learned."""

    total_secs: float
    summary: RunSummary
    accuracy: float


ROWS: dict[str, Callable[[Outcome], float | None]] = {
    "RL phase, s": lambda run: run.summary.wall_secs,
    "whole run, s": lambda run: run.total_secs,
    "rollout, s": lambda run: run.summary.rollout_secs,
    "train, s": lambda run: run.summary.train_secs,
    "generated tokens/s": lambda run: run.summary.rollout_tokens_per_sec,
    "trained tokens/s": lambda run: run.summary.trained_tokens_per_sec,
    "explorer idle, %": lambda run: 100 * run.summary.explorer_idle_share,
    "trainer idle, %": lambda run: 100 * run.summary.trainer_idle_share,
    "staleness, mean": lambda run: run.summary.mean_staleness,
    "staleness, max": lambda run: run.summary.max_staleness,
    "accuracy, %": lambda run: 100 * run.accuracy,
    "achieved": lambda run: run.summary.achieved_ratio,
    "ideal": lambda run: run.summary.ideal_ratio,
}


def main() -> None:
    """Runs all modes and prints the table."""
    arguments = _arguments()
    outcomes: dict[str, list[Outcome]] = {name: [] for name in NAMES}
    with tempfile.TemporaryDirectory() as directory:
        for turn in range(arguments.rounds):
            for name in NAMES:
                workdir = Path(directory, f"{name}-{turn}")
                outcomes[name].append(run(arguments.config, name, arguments.steps, workdir))
                if arguments.timelines and not turn:
                    picture, _ = draw_timeline(workdir, directory, steps=DRAWN_STEPS)
                    shutil.copy(picture, arguments.timelines / f"timeline-{name}.png")
                print(
                    f"# {name}, round {turn + 1}: {outcomes[name][-1].total_secs:.0f} s", flush=True
                )
    print("| " + " | ".join(["", *NAMES]) + " |")
    print("|---" * (len(NAMES) + 1) + "|")
    for label, value in ROWS.items():
        cells = [_median(value, outcomes[name]) for name in NAMES]
        print("| " + " | ".join([label, *cells]) + " |")


def run(config: str, mode: str, steps: int, workdir: Path) -> Outcome:
    """Runs the launcher in one mode.

    Raises:
      SystemExit: the run failed.
    """
    command = [sys.executable, "-m", "launcher", f"--config={config}"]
    command += [f"--config.sync.mode={mode}", f"--config.workdir={workdir}"]
    command += [f"--config.trainer.steps={steps}"] if steps else []
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    total_secs = time.monotonic() - started
    if done.returncode:
        sys.exit(f"{mode} failed:\n{done.stdout}\n{done.stderr}")
    accuracy = read_metrics(workdir, "evaluation")[-1]["accuracy"]
    return Outcome(total_secs, summarize(read_spans(workdir)), accuracy)


def _median(value: Callable[[Outcome], float | None], outcomes: list[Outcome]) -> str:
    numbers = [number for run in outcomes if (number := value(run)) is not None]
    return f"{statistics.median(numbers):.4g}" if numbers else ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/arithmetic.py")
    parser.add_argument(
        "--steps", type=int, default=0, help="trainer steps; 0 for the config's own"
    )
    parser.add_argument(
        "--rounds", type=int, default=1, help="runs of each mode; medians are shown"
    )
    parser.add_argument("--timelines", type=Path, help="where to draw timelines; none by default")
    return parser.parse_args()


if __name__ == "__main__":
    main()
