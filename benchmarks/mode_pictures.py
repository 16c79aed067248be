"""The modes on a job of equal parts: who waits, how fast, how stale; measured and predicted.

    python benchmarks/mode_pictures.py [--config=benchmarks/equal_parts.py] [--seeds=500:507]
        [--modes=synchronous,…] [--rate=100mbit] [--steps=20] [--model=policy]
        [--results=runs/mode_pictures.jsonl] [--timelines=docs/modes]
    python benchmarks/mode_pictures.py --report [...]

The job's rollouts, train steps and transfers take about equally long. The master and the trainer
are on one host, and each explorer has a host of its own, whose link has the given rate; hosts are
network namespaces, which takes root. `--rate=plain` leaves all on this machine's loopback. For each
seed the modes run one after the other, and each run adds a line to the results; a run that has a
line is not repeated. All runs begin with the same policy: an exported one (`--model`), or one that
SFT makes each time.

The table has the median over the seeds, with the least and the greatest; the curves of rewards over
seconds are drawn beside the results. Predicted figures are those of `tune`, from the records of the
same seed's synchronous run. `--timelines` is the folder for a timeline of each mode, from the runs
of the first seed, of six steps after two thirds of the run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import seeds
from made_runs import join_words, joined_flags, launched, predictions, settings_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from networks import NetworkError, network

from rl_sync.checkpoints.audit import audit
from rl_sync.display.timeline_figure import draw_timeline
from rl_sync.launcher import command_line
from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines
from rl_sync.records.metrics import read_metrics
from rl_sync.records.span_reader import read_spans
from rl_sync.records.spans import SYNC_KINDS, SpanKind
from rl_sync.records.summary import of_kind
from rl_sync.role_names import TRAINER
from rl_sync.settings.config_reading import read_settings
from rl_sync.simulation.speed.prediction import figures_of

ROOT = Path(__file__).resolve().parents[1]
PORT = 7401
MEASURED = "synchronous"
MODES: dict[str, dict[str, Any]] = {
    MEASURED: {"sync.mode": "synchronous"},
    "one_step_off_policy": {"sync.mode": "one_step_off_policy"},
    "asynchronous": {
        "sync.mode": "asynchronous", "explorer.count": 1, "environment.workers": 256,
    },
    "multi_explorer": {"sync.mode": "multi_explorer"},
    "interval 4, offset 0": {"sync.mode": "custom", "sync.interval": 4, "sync.offset": 0},
    "interval 1, offset 4": {"sync.mode": "custom", "sync.interval": 1, "sync.offset": 4},
}  # fmt: skip
"""Settings of each mode: four explorers, or one that plays as many episodes at once."""
FIGURES = {
    "steps_an_hour": ("steps an hour", 1, ",.0f"),
    "explorer_idle": ("explorers idle, %", 100, ".0f"),
    "trainer_idle": ("trainer idle, %", 100, ".0f"),
    "mean_staleness": ("mean staleness", 1, ".2f"),
}
"""Labels of figures, with a factor and a form; each is predicted too."""
DRAWN_STEPS = 6
REWARD = 0.9
_REACHED = f"s to a reward of {REWARD}"
_COLOURS = ("#3F5F7F", "#57A773", "#D9383A", "#8E4EC6", "#E0A030", "#808080")


def run(case: str, seed: int, arguments: argparse.Namespace, folder: Path) -> Path:
    """Makes a run; returns its work directory.

    Raises:
      SystemExit: it failed, or its records have faults.
    """
    workdir = folder / "run"
    flags = {**MODES[case], "seed": seed, "workdir": workdir, "trainer.steps": arguments.steps}
    if arguments.model is not None:
        flags |= {"model.path": arguments.model.resolve(), "sft.steps": 0}
    given = [f"--config={arguments.config}", *(f"--config.{k}={v}" for k, v in flags.items())]
    names = [f"explorer{n + 1}" for n in range(_explorers(given))]
    with network(arguments.rate, 1 + len(names)) as hosts:
        elsewhere = {host.address for host in hosts[1:]} - {hosts[0].address}
        if elsewhere:
            joined = joined_flags(hosts[0], PORT, names)
            given += [f"--config.{k}={v}" for k, v in joined.items()]
        launcher = launched(hosts[0], given, subprocess.PIPE)
        joining = [
            launched(host, join_words(name, hosts[0], PORT), subprocess.DEVNULL)
            for host, name in zip(hosts[1:] if elsewhere else (), names, strict=False)
        ]
        output, _ = launcher.communicate()
        for one in joining:
            try:
                one.wait(30)
            except subprocess.TimeoutExpired:
                one.kill()
    if launcher.returncode:
        sys.exit(f"{case}, seed {seed}, failed:\n{output[-4000:]}")
    if faults := audit(settings_of(workdir), workdir):
        sys.exit(f"{case}, seed {seed}: {faults}")
    return workdir


def _explorers(given: Sequence[str]) -> int:
    """Returns the number of explorers of a command line."""
    config = command_line.parse([*given]).config
    assert config is not None
    return read_settings(config.to_dict()).explorers


def measured(workdir: Path) -> dict[str, Any]:
    """Returns the figures of a run, its curve of rewards, and what its parts take."""
    spans = read_spans(workdir)
    steps = read_metrics(workdir, "rl")
    accuracies = [one["accuracy"] for one in read_metrics(workdir, "evaluation")]
    start = min(span.start_secs for span in of_kind(spans, SpanKind.ROLLOUT))
    syncs = [span for span in spans if span.kind in SYNC_KINDS and span.role != TRAINER]
    parts = {
        "rollout": of_kind(spans, SpanKind.ROLLOUT),
        "train step": of_kind(spans, SpanKind.TRAIN),
        "transfer": syncs,
    }
    return {
        "figures": figures_of(spans)._asdict(),
        "parts": {
            name: statistics.median(span.end_secs - span.start_secs for span in some)
            for name, some in parts.items()
            if some
        },
        "secs": [round(one["time"] - start, 2) for one in steps],
        "reward": [round(one["reward_mean"], 4) for one in steps],
        "accuracy": [accuracies[0], accuracies[-1]],
    }


def report(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Writes the table of the runs, that of the predictions, and what parts take alone."""
    predicted = {one["seed"]: one["predicted"] for one in lines if "predicted" in one}
    told = [label for label, _, _ in FIGURES.values()]
    real = [_row(["mode", "seeds", *told, "greatest", _REACHED, "accuracy, %"])]
    guessed = [_row(["mode", "steps an hour, predicted to measured", *told[1:]])]
    for rows in (real, guessed):
        rows.append("|---" * (rows[0].count("|") - 1) + "|")
    for mode in MODES:
        own = [one for one in lines if one["mode"] == mode]
        if not own:
            continue
        name = f"`{mode}`" if mode.isidentifier() else mode
        figures = [one["figures"] for one in own]
        ends = [_spread([one["max_staleness"] for one in figures], ".0f")]
        ends.append(_spread([_secs_to(REWARD, one) for one in own], ".1f"))
        ends.append(_spread([100 * one["accuracy"][-1] for one in own], ".1f"))
        real.append(_row([name, str(len(own)), *_cells(figures), *ends]))
        of_seeds = [(predicted.get(one["seed"], {}).get(mode), one) for one in own]
        pairs = [(guess, one) for guess, one in of_seeds if guess is not None]
        speeds = [a["steps_an_hour"] / b["figures"]["steps_an_hour"] for a, b in pairs]
        if pairs:
            others = _cells([one for one, _ in pairs])[1:]
            guessed.append(_row([name, _spread(speeds, ".2f"), *others]))
    rows = [*real, "", "Predicted by `tune`:", "", *guessed]
    own = [one for one in lines if one["mode"] == MEASURED]
    if own:
        parts = {name: [one["parts"][name] for one in own] for name in own[0]["parts"]}
        said = ", ".join(f"{name} {_spread(some, '.2f')} s" for name, some in parts.items())
        rows += ["", f"In the synchronous runs: {said}."]
    return rows


def _secs_to(reward: float, line: dict[str, Any]) -> float:
    """Returns the seconds to the first step whose mean reward is that high; infinity for none."""
    pairs = zip(line["secs"], line["reward"], strict=True)
    return next((secs for secs, one in pairs if one >= reward), math.inf)


def _cells(figures: Sequence[dict[str, float]]) -> list[str]:
    """Writes the figures of some runs."""
    return [
        _spread([factor * one[name] for one in figures], form)
        for name, (_, factor, form) in FIGURES.items()
    ]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def figure(lines: Sequence[dict[str, Any]]) -> Figure:
    """Draws the mean reward of a step over seconds: the mean of the seeds, least to greatest."""
    drawing = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(drawing)
    axis = drawing.subplots()
    for mode, colour in zip(MODES, _COLOURS, strict=True):
        own = [one for one in lines if one["mode"] == mode]
        if not own:
            continue
        secs = np.linspace(0, min(one["secs"][-1] for one in own), 100)
        curves = np.array([np.interp(secs, one["secs"], one["reward"]) for one in own])
        axis.plot(secs, curves.mean(axis=0), color=colour, label=mode)
        axis.fill_between(secs, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.12)
    axis.set_xlabel("seconds since the first rollout")
    axis.set_ylabel("mean reward of a step")
    axis.legend()
    axis.grid(alpha=0.3)
    return drawing


def _seeds(lines: Sequence[dict[str, Any]]) -> list[int]:
    return [one["seed"] for one in lines]


def _spread(numbers: Sequence[float], form: str) -> str:
    middle = format(statistics.median(numbers), form)
    ends = [format(end, form) for end in (min(numbers), max(numbers))]
    return middle if set(ends) == {middle} else f"{middle} ({ends[0]} to {ends[1]})"


def main() -> None:
    """Makes the runs that have no result yet, then reports."""
    arguments = _arguments()
    writer = JsonLinesWriter(arguments.results)  # Creates the file if it is missing.
    known = {(one["mode"], one["seed"]) for one in read_json_lines(arguments.results)}
    for seed, mode in itertools.product(arguments.seeds, arguments.modes):
        if arguments.report or (mode, seed) in known:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                workdir = run(mode, seed, arguments, Path(folder))
            except NetworkError as error:
                sys.exit(f"--rate={arguments.rate}: {error}")
            line = {"mode": mode, "seed": seed, "rate": arguments.rate, **measured(workdir)}
            if mode == MEASURED:
                modes = {mode: MODES[mode] for mode in arguments.modes}
                unset = {"launch.hosts": ""}
                line["predicted"] = predictions(workdir, modes, arguments.steps, unset)
            if arguments.timelines is not None and seed == arguments.seeds[0]:
                _draw(mode, workdir, Path(folder), arguments)
        writer.write(line)
        print(f"# {mode}, seed {seed}: {json.dumps(line['figures'])[:110]}", flush=True)
    writer.close()
    lines = read_json_lines(arguments.results)
    print("\n".join(report(lines)))
    picture = arguments.results.with_suffix(".png")
    figure(lines).savefig(picture, dpi=120, metadata={"Software": None})
    print(f"\n{picture}")


def _draw(mode: str, workdir: Path, folder: Path, arguments: argparse.Namespace) -> None:
    first = max(1, min(arguments.steps * 2 // 3, arguments.steps - DRAWN_STEPS + 1))
    steps = first, min(arguments.steps, first + DRAWN_STEPS - 1)
    picture, _ = draw_timeline(workdir, folder, steps=steps, title=mode)
    arguments.timelines.mkdir(parents=True, exist_ok=True)
    shutil.copy(picture, arguments.timelines / f"{re.sub(r'[^a-z0-9]+', '-', mode)}.png")


def _modes(text: str) -> list[str]:
    names = re.split(r",(?! )", text)
    for name in names:
        if name not in MODES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {'; '.join(MODES)}")
    return names


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="benchmarks/equal_parts.py")
    parser.add_argument("--seeds", type=seeds.seeds_of, default=[*range(500, 508)])
    parser.add_argument("--modes", type=_modes, default=[*MODES])
    parser.add_argument("--rate", default="100mbit", help="of each host's link, or plain")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--model", type=Path, help="an exported policy, to begin without SFT")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "mode_pictures.jsonl")
    parser.add_argument("--timelines", type=Path, help="where to draw timelines; none by default")
    parser.add_argument("--report", action="store_true", help="only report the results so far")
    return parser.parse_args()


if __name__ == "__main__":
    main()
