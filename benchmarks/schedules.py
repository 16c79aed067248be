"""A pretrained model over schedules and corrections: accuracy, and what staleness costs.

    python benchmarks/schedules.py --model=smollm2 [--seeds=400:407] [--tasks=sums,sentences]
        [--trained=adapters,all] [--schedules=synchronous,one_step_off_policy,asynchronous:2,…]
        [--corrections=none,truncated,centered] [--steps=24] [--groups=4]
        [--results=runs/schedules.jsonl]
    python benchmarks/schedules.py --report [--results=…]

Each run is one of `benchmarks/seeds.py`, with the loss `reinforce` and the same optimizer, and
adds a line to the results. A run that has a line is not repeated, so the study can be stopped at
any time. Its order is by seeds: after the first one each cell has a run. Data of the synchronous
schedule need no correction, so it has runs without one only.

The report has a table for each task and each choice of trained parameters. A cell is the mean
accuracy after the last step, and the mean of its differences, seed by seed, from the synchronous
schedule; behind them is the 95 % interval of 10,000 bootstrap samples. Accuracies without a
correction are drawn beside the results, over steps and over the seconds of the RL phase: means of
the seeds, with the least and the greatest.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import seeds
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines

ROOT = Path(__file__).resolve().parents[1]
TASKS = {"sums": "configs/smollm2.py", "sentences": "benchmarks/short_sentences.py"}
TRAINED = {"adapters": (), "all": ("model.lora.rank=0", "optimizer.learning_rate=1e-5")}
REFERENCE, NONE = "synchronous", "none"
SCHEDULES = (
    REFERENCE,
    "one_step_off_policy",
    "asynchronous:2",
    "asynchronous:8",
    "custom:1:4",
)
_LOSS = (
    "algorithm.name=grpo",
    "algorithm.loss=reinforce",
    "algorithm.advantage=grpo",
    "algorithm.aggregation=token_mean",
    "algorithm.kl_coefficient=0.0",
    "algorithm.allow_unsafe=True",  # Without a correction it is refused for stale data.
)
CORRECTIONS = {
    NONE: _LOSS,
    "truncated": (*_LOSS, "algorithm.correction=token_truncation"),
    "centered": (*_LOSS, "algorithm.score_centering=topk"),
}
CURVES = (
    "reward_mean",
    "entropy",
    "staleness_mean",
    "logprob_gap",
    "effective_sample_share",
)
_SAMPLES = 10_000
Lines = list[dict[str, Any]]


class Size(NamedTuple):
    """The trainer steps of a run, and the groups of each."""

    steps: int
    groups: int

    @property
    def settings(self) -> tuple[str, str]:
        """The run's settings for it."""
        return f"trainer.steps={self.steps}", f"trainer.groups_per_step={self.groups}"


class Cell(NamedTuple):
    """The kind of a run: keys of the tables above, and a mode of `seeds.Case`."""

    task: str
    trained: str
    schedule: str
    correction: str

    @property
    def is_needed(self) -> bool:
        """False for corrections of data that need none."""
        return self.schedule != REFERENCE or self.correction == NONE

    def case(self, seed: int, model: str, size: Size) -> seeds.Case:
        """Returns the run of a seed."""
        settings = [*TRAINED[self.trained], *CORRECTIONS[self.correction], *size.settings]
        settings += [f"model.path={model}", "evaluation.problems=100"]
        return seeds.Case(TASKS[self.task], self.schedule, seed, tuple(settings))


def cell_of(line: dict[str, Any]) -> Cell:
    return Cell(**{name: line[name] for name in Cell._fields})


def report(lines: Lines) -> list[str]:
    """Writes a table for each task and each choice of trained parameters."""
    rows: list[str] = []
    for task, trained in itertools.product(TASKS, TRAINED):
        own = [one for one in lines if (one["task"], one["trained"]) == (task, trained)]
        if own:
            rows += ["", f"{task}, {trained} trained:", "", *_table(own)]
    return rows[1:]


def _table(lines: Lines) -> list[str]:
    corrections = [one for one in CORRECTIONS if any(x["correction"] == one for x in lines)]
    heads = ["schedule", "seeds", *corrections]
    heads += ["staleness", "gap, nats", "effective sample share", "RL phase, s"]
    rows = [seeds.table_row(heads), "|---" * len(heads) + "|"]
    for schedule in SCHEDULES:
        own = [one for one in lines if one["schedule"] == schedule]
        if not own:
            continue
        cells = [f"`{schedule}`", str(len({one["seed"] for one in own}))]
        for correction in corrections:
            some = [one for one in own if one["correction"] == correction]
            cells.append(_compared(some, _of(lines, REFERENCE, NONE)))
        for name, form in (
            ("staleness_mean", ".2f"),
            ("logprob_gap", ".4f"),
            ("effective_sample_share", ".3f"),
        ):
            cells.append(format(_second_half(own, name), form))
        cells.append(f"{statistics.median(one['secs'][-1] for one in own):.0f}")
        rows.append(seeds.table_row(cells))
    return rows


def _of(lines: Lines, schedule: str, correction: str) -> Lines:
    wanted = (schedule, correction)
    return [one for one in lines if (one["schedule"], one["correction"]) == wanted]


def _compared(some: Lines, others: Lines) -> str:
    """Writes the mean accuracy in percent, and the differences from the same seeds of others."""
    if not some:
        return ""
    text = f"{100 * statistics.mean(one['accuracy'][-1] for one in some):.1f}"
    before = {one["seed"]: one["accuracy"][-1] for one in others}
    differences = [
        100 * (one["accuracy"][-1] - before[one["seed"]]) for one in some if one["seed"] in before
    ]
    if len(differences) < 2 or some == others:
        return text
    low, high = interval(differences)
    return f"{text} ({statistics.mean(differences):+.1f}, {low:+.1f} to {high:+.1f})"


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the mean by the bootstrap (Efron, 1979, percentiles)."""
    drawn = np.random.default_rng(0).choice(differences, (_SAMPLES, len(differences)))
    low, high = np.percentile(drawn.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def _second_half(lines: Lines, name: str) -> float:
    """Returns the mean of a curve over the second half of the steps, and over runs."""
    halves = [one[name][len(one[name]) // 2 :] for one in lines]
    found = [value for half in halves for value in half if value is not None]
    return statistics.mean(found) if found else float("nan")


def figure(lines: Lines) -> Figure:
    """Draws the accuracy of runs without a correction: a row for each task and trained part."""
    own = [one for one in lines if one["correction"] == NONE]
    kinds = [*dict.fromkeys((one["task"], one["trained"]) for one in own)]
    drawing = Figure(figsize=(11, 3.5 * len(kinds)), layout="constrained")
    FigureCanvasAgg(drawing)
    panels = drawing.subplots(len(kinds), 2, squeeze=False, sharey="row")
    for kind, row in zip(kinds, panels, strict=True):
        some = [one for one in own if (one["task"], one["trained"]) == kind]
        for axis, name in zip(row, ("accuracy", "accuracy over seconds"), strict=True):
            for schedule, colour in zip(SCHEDULES, seeds.COLOURS, strict=False):
                if of_schedule := [one for one in some if one["schedule"] == schedule]:
                    seeds.draw(axis, of_schedule, name, colour, schedule)
            axis.set_title("{}, {} trained".format(*kind))
            axis.set_xlabel("seconds of the RL phase" if "seconds" in name else "trainer steps")
        row[0].set_ylabel("held-out accuracy")
    panels[0][0].legend(fontsize=8)
    return drawing


def main() -> None:
    """Makes the runs that have no result yet, then reports."""
    arguments = _arguments()
    size = Size(arguments.steps, arguments.groups)
    writer = JsonLinesWriter(arguments.results)
    lines = read_json_lines(arguments.results)
    if not arguments.report and any(not {*size.settings} <= {*one["settings"]} for one in lines):
        told = " and ".join(size.settings)
        sys.exit(f"{arguments.results} has runs without {told}: give --results=ANOTHER_FILE.")
    known = {(cell_of(one), one["seed"]) for one in lines}
    cells = itertools.starmap(
        Cell,
        itertools.product(
            arguments.tasks, arguments.trained, arguments.schedules, arguments.corrections
        ),
    )
    for seed, cell in itertools.product(arguments.seeds, [*cells]):
        if arguments.report or (cell, seed) in known or not cell.is_needed:
            continue
        if arguments.model is None:
            sys.exit("--model=DIRECTORY names what benchmarks/real_model.py makes.")
        case = cell.case(seed, arguments.model, size)
        line = seeds.run(case, max(1, size.steps // 2), CURVES)
        writer.write({**line, **cell._asdict()})
    writer.close()
    lines = read_json_lines(arguments.results)
    print("\n".join(report(lines)))
    if any(one["correction"] == NONE for one in lines):
        picture = arguments.results.with_suffix(".png")
        figure(lines).savefig(picture, dpi=120, metadata={"Software": None})
        print(f"\n{picture}")


def _one_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return text.split(",")

    return read


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="directory of the checkpoint")
    parser.add_argument("--seeds", type=seeds.seeds_of, default=[*range(400, 408)])
    for name, known in {
        "tasks": [*TASKS],
        "trained": [*TRAINED],
        "schedules": [*SCHEDULES],
        "corrections": [*CORRECTIONS],
    }.items():
        parser.add_argument(f"--{name}", type=_one_of(known), default=known)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--groups", type=int, default=4, help="groups of a trainer step")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "schedules.jsonl")
    parser.add_argument("--report", action="store_true", help="only report the results so far")
    return parser.parse_args()


if __name__ == "__main__":
    main()
