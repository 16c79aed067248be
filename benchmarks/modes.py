"""The same work in the four modes, side by side: seconds to the same accuracy, and idle time.

    python benchmarks/modes.py [--config=configs/long_tail.py] [--modes=synchronous,…] [--seeds=0]
        [--steps=30] [--target=0.9] [--every=2] [--results=runs/modes-long_tail.jsonl]
        [--timelines=docs]
    python benchmarks/modes.py --report [...]

Runs any config in each mode (or in those of `--modes`) with each seed, one run at a time, with the
modes in turns. Prints a table with the median over the seeds, and with the least and the greatest
if there are several. Each run adds a line to the results, and a run that has a line is not
repeated. So the command can be stopped at any time, and resumes where it was.

The time to an accuracy goes from the start of the RL phase to the end of the first trainer step
whose policy solves that share (`--target`) of the held-out problems. The trainer saves a snapshot
every few steps (`--every`). The snapshots are evaluated after the run, so evaluations take no time
of the run, and snapshots take the same time in all modes. The *ideal* time is that of the same work
if nobody waits: the longer of the rollouts up to then, divided among the explorers, and the train
steps up to then. The *ideal* ratio is the longer of total rollout and total train time, divided by
their sum; one explorer cannot be faster if each role has processors of its own. The *achieved*
ratio is the phase's length divided by that sum. Processes that share processors take longer for the
same work when they overlap, so the seconds of rollout and train are printed too.

`--timelines` is the folder for a timeline of each mode, from one more run with the first seed and
without snapshots: five trainer steps, from two thirds of the run on.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rl_sync.checkpoints.snapshot_folder import load_part
from rl_sync.checkpoints.snapshots import snapshot_path
from rl_sync.cluster import compilation_cache
from rl_sync.display.timeline_figure import draw_timeline
from rl_sync.models import lora
from rl_sync.models.mesh_shape import MeshShape
from rl_sync.models.sharding import Layout
from rl_sync.models.transformer import init_params
from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines
from rl_sync.records.metrics import read_metrics
from rl_sync.records.span_reader import read_spans
from rl_sync.records.spans import Span, SpanKind
from rl_sync.records.summary import clipped, of_kind, rl_phase, summarize, union_secs
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.role_names import is_explorer
from rl_sync.roles.assembly import wiring
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest
from rl_sync.schedule import MODES
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings
from rl_sync.types import Params
from rl_sync.workdir import Workdir

ROOT = Path(__file__).resolve().parents[1]
NAMES = [mode for mode in MODES if mode != "custom"]
DRAWN_STEPS = 5
NEVER = math.inf
ROWS = (
    "RL phase, s",
    "whole run, s",
    "rollout, s",
    "train, s",
    "generated tokens/s",
    "trained tokens/s",
    "explorer idle, %",
    "trainer idle, %",
    "staleness, mean",
    "staleness, max",
    "accuracy before RL, %",
    "accuracy, %",
    "achieved",
    "ideal",
)


class Case(NamedTuple):
    """One run of the comparison; `steps=0` means the config's own, `every=0` no snapshots."""

    config: str
    mode: str
    seed: int
    steps: int
    every: int


class Point(NamedTuple):
    """An evaluated policy of a run.

    Attributes:
      step: the number of its trainer steps.
      accuracy: the share of held-out problems that it solves with greedy completions.
      secs: the time from the start of the RL phase to the end of that step.
      ideal_secs: the time of the rollouts and train steps until then if nobody waits.
    """

    step: int
    accuracy: float
    secs: float
    ideal_secs: float


def main() -> None:
    """Makes the runs that have no result yet, prints the table, and draws the timelines."""
    arguments = _arguments()
    cases = [
        Case(arguments.config, mode, seed, arguments.steps, arguments.every)
        for seed, mode in itertools.product(arguments.seeds, arguments.modes)
    ]
    writer = JsonLinesWriter(arguments.results)  # Creates the file if it is missing.
    done = {_key(line) for line in read_json_lines(arguments.results)}
    for case in cases:
        if case not in done and not arguments.report:
            writer.write(_measured_run(case))
    writer.close()
    known = [line for line in read_json_lines(arguments.results) if _key(line) in cases]
    print("\n".join(table(known, arguments.target)))
    if arguments.timelines and not arguments.report:
        for mode in arguments.modes:
            _draw(Case(arguments.config, mode, arguments.seeds[0], arguments.steps, 0), arguments)


def table(lines: Sequence[dict[str, Any]], target: float) -> list[str]:
    """Writes the results of runs as a Markdown table with a column for each mode."""
    modes = [mode for mode in NAMES if any(line["mode"] == mode for line in lines)]
    rows = [_cells("", [f"{mode}" for mode in modes]), "|---" * (len(modes) + 1) + "|"]

    def add(label: str, value: Any) -> None:
        of_modes = [[value(line) for line in lines if line["mode"] == mode] for mode in modes]
        rows.append(_cells(label, [_spread(values) for values in of_modes]))

    def add_point(label: str, name: str) -> None:
        add(label, lambda line: getattr(_reached(line, target), name, NEVER))

    if any(line["curve"] for line in lines):
        add_point(f"to {100 * target:g} %, s", "secs")
        add_point("… ideal, s", "ideal_secs")
        add_point("… trainer steps", "step")
    for name in ROWS:
        add(name, lambda line, name=name: line["values"][name])
    return rows


def run(case: Case, workdir: Path) -> float:
    """Runs the launcher; returns its seconds.

    Raises:
      SystemExit: the run failed.
    """
    command = [sys.executable, "-m", "launcher", f"--config={case.config}"]
    command += [f"--config.sync.mode={case.mode}", f"--config.seed={case.seed}"]
    command += [f"--config.workdir={workdir}", f"--config.checkpoint.every_steps={case.every}"]
    command += [f"--config.checkpoint.keep={1 << 20}"] if case.every else []
    command += [f"--config.trainer.steps={case.steps}"] if case.steps else []
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{case} failed:\n{done.stdout}\n{done.stderr}")
    return time.monotonic() - started


def measured(workdir: Path) -> dict[str, float | None]:
    """Computes a run's figures from its spans and metrics, by the labels of the table."""
    summary, accuracies = summarize(read_spans(workdir)), read_metrics(workdir, "evaluation")
    return {
        "RL phase, s": summary.wall_secs,
        "rollout, s": summary.rollout_secs,
        "train, s": summary.train_secs,
        "generated tokens/s": summary.rollout_tokens_per_sec,
        "trained tokens/s": summary.trained_tokens_per_sec,
        "explorer idle, %": 100 * summary.explorer_idle_share,
        "trainer idle, %": 100 * summary.trainer_idle_share,
        "staleness, mean": summary.mean_staleness,
        "staleness, max": summary.max_staleness,
        "accuracy before RL, %": 100 * accuracies[0]["accuracy"],
        "accuracy, %": 100 * accuracies[-1]["accuracy"],
        "achieved": summary.achieved_ratio,
        "ideal": summary.ideal_ratio,
    }


def learning_curve(workdir: Path) -> list[Point]:
    """Returns the accuracy of each snapshot of a run, and its time."""
    settings, spans = _settings(workdir), read_spans(workdir)
    start, _ = rl_phase(spans)
    points = []
    for train in of_kind(spans, SpanKind.TRAIN):
        assert train.step is not None
        path = snapshot_path(Workdir(workdir).snapshots, train.step)
        if path.is_dir():
            accuracy = _accuracy(settings, workdir, train.step)
            ideal_secs = _ideal_secs(clipped(spans, start, train.end_secs))
            points.append(Point(train.step, accuracy, train.end_secs - start, ideal_secs))
    return points


def _ideal_secs(spans: Sequence[Span]) -> float:
    explorers = {span.role for span in spans if is_explorer(span.role)}
    rollouts = of_kind(spans, SpanKind.ROLLOUT)
    rollout_secs = sum(union_secs(of_kind(rollouts, SpanKind.ROLLOUT, role=e)) for e in explorers)
    return max(rollout_secs / len(explorers), union_secs(of_kind(spans, SpanKind.TRAIN)))


def _accuracy(settings: RunSettings, workdir: Path, step: int) -> float:
    """Returns the share of held-out problems that a snapshot's policy solves greedily."""
    task = wiring.load_task(settings)
    model = wiring.model_config(settings, task)
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shapes = jax.eval_shape(lambda key: init_params(model, key), jax.random.key(0))
    abstract: Params = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes
    )
    _, part, _ = load_part(Workdir(workdir).snapshots, step, {"params": abstract})
    prompts = task.held_out[: settings.evaluation.problems]
    tokens, lengths = task.encode_prompts([prompt.text for prompt in prompts])
    greedy = wiring.greedy_sampling(settings, task)
    engine = _engine(settings)
    engine.load(lora.merge(model, part["params"]) if model.lora else part["params"], step)
    done = engine.generate(
        [
            CompletionRequest(row[:length], greedy)
            for row, length in zip(tokens, lengths, strict=True)
        ]
    )
    items = [
        ScoringRequest(prompt.fields, Completion(task.tokenizer.decode(one.tokens.tolist())))
        for prompt, (one,) in zip(prompts, done, strict=True)
    ]
    judged = Rubric(task.reward).judge(items)
    return float(np.mean([one.score == 1.0 for one in judged]))


@functools.lru_cache(maxsize=1)  # Its programs are compiled once a run.
def _engine(settings: RunSettings) -> Engine:
    compilation_cache.use(settings.launch.compilation_cache, os.environ)
    task = wiring.load_task(settings)
    rows = min(settings.evaluation.problems, settings.sft.probe_problems)
    model = lora.merged_config(wiring.model_config(settings, task))
    layout = Layout(MeshShape().mesh(jax.devices()[:1]), settings.sharding.rules)
    chunk_tokens = settings.rollout.chunk_tokens
    decode = task.tokenizer.decode
    return Engine(
        model, layout, EngineOptions(slots=rows, chunk_tokens=chunk_tokens, decode=decode)
    )


def _settings(workdir: Path) -> RunSettings:
    return read_settings(json.loads(Workdir(workdir).config.read_text()))


def _measured_run(case: Case) -> dict[str, Any]:
    """Makes a run, and returns its line of the results."""
    with tempfile.TemporaryDirectory() as directory:
        workdir = Path(directory, case.mode)
        values = {"whole run, s": run(case, workdir), **measured(workdir)}
        curve = learning_curve(workdir) if case.every else []
    print(f"# {case.mode}, seed {case.seed}: {values['whole run, s']:.0f} s", flush=True)
    return {**case._asdict(), "values": values, "curve": [point._asdict() for point in curve]}


def _draw(case: Case, arguments: argparse.Namespace) -> None:
    """Draws a timeline of a run without snapshots."""
    with tempfile.TemporaryDirectory() as directory:
        workdir = Path(directory, case.mode)
        run(case, workdir)
        steps = drawn_steps(_settings(workdir).trainer.steps)
        picture, _ = draw_timeline(workdir, directory, steps=steps)
        arguments.timelines.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, arguments.timelines / f"timeline-{case.mode}.png")


def drawn_steps(steps: int) -> tuple[int, int]:
    """Returns the first and the last trainer step of a picture, after all compilation."""
    first = max(1, min(steps * 2 // 3, steps - DRAWN_STEPS + 1))
    return first, min(steps, first + DRAWN_STEPS - 1)


def _reached(line: dict[str, Any], target: float) -> Point | None:
    """Returns the first policy that reaches the target; None if none does."""
    points = (Point(**point) for point in line["curve"])
    return next((point for point in points if point.accuracy >= target), None)


def _spread(values: Sequence[float | None]) -> str:
    """Formats the median, with the least and the greatest if there are several numbers."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return ""
    least, middle, greatest = (
        "never" if value == NEVER else f"{value:.4g}"
        for value in (min(numbers), statistics.median(numbers), max(numbers))
    )
    return f"{middle} ({least} to {greatest})" if len(numbers) > 1 else middle


def _cells(label: str, cells: Sequence[str]) -> str:
    return "| " + " | ".join([label, *cells]) + " |"


def _key(line: dict[str, Any]) -> Case:
    return Case(*(line[name] for name in Case._fields))


def _modes(text: str) -> list[str]:
    for mode in text.split(","):
        if mode not in NAMES:
            raise argparse.ArgumentTypeError(f"{mode!r} is not one of {', '.join(NAMES)}")
    return text.split(",")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/long_tail.py")
    parser.add_argument("--modes", type=_modes, default=NAMES)
    parser.add_argument(
        "--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0]
    )
    parser.add_argument(
        "--steps", type=int, default=0, help="trainer steps; 0 for the config's own"
    )
    parser.add_argument("--target", type=float, default=0.9, help="accuracy that is timed")
    parser.add_argument(
        "--every", type=int, default=2, help="trainer steps between snapshots; 0 for no curve"
    )
    parser.add_argument("--results", type=Path, help="default: runs/modes-<config>.jsonl")
    parser.add_argument("--timelines", type=Path, help="where to draw timelines; none by default")
    parser.add_argument("--report", action="store_true", help="only report the results so far")
    arguments = parser.parse_args()
    if arguments.results is None:
        arguments.results = ROOT / "runs" / f"modes-{Path(arguments.config).stem}.jsonl"
    return arguments


if __name__ == "__main__":
    main()
