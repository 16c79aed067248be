"""Draws the share of values that each version changed, and the bytes that travelled, by step.

    python benchmarks/changed_share.py SmolLM2=runs/a,runs/b,runs/c Gemma=runs/d --out=docs/sync.png

Each name stands for the runs of one model, over seeds, with `sync.delta=on`. A line is the median
of its runs, a band their least and greatest.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import matplotlib

from rl_sync.records.metric_catalog import RL
from rl_sync.records.metrics import read_metrics

matplotlib.use("agg")
from matplotlib import pyplot as plt

PANELS = {
    "values that changed": ("weights/changed_share", None),
    "bytes, of a full copy": ("weights/delta_bytes", "weights/dense_bytes"),
}


def by_step(runs: list[Path], value: str, whole: str | None) -> dict[int, list[float]]:
    """Returns the values of all runs at each trainer step, as shares."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for line in read_metrics(run, RL):
            if line.get(value):
                share = line[value] / (line[whole] if whole else 1.0)
                found.setdefault(int(line["step"]), []).append(share)
    return found


def main() -> None:
    """Draws the picture, and prints the figures."""
    parser = argparse.ArgumentParser(description="Share of values that change, by step.")
    parser.add_argument("models", nargs="+", help="NAME=RUN,RUN,…")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    figure, axes = plt.subplots(1, len(PANELS), figsize=(9, 3.2), sharex=True, sharey=True)
    for axis, (title, (value, whole)) in zip(axes, PANELS.items(), strict=True):
        for model in arguments.models:
            name, _, paths = model.partition("=")
            found = by_step([Path(path) for path in paths.split(",")], value, whole)
            steps = sorted(found)
            medians = [100 * statistics.median(found[step]) for step in steps]
            (line,) = axis.plot(steps, medians, label=name)
            lows, highs = ([100 * of(found[step]) for step in steps] for of in (min, max))
            axis.fill_between(steps, lows, highs, color=line.get_color(), alpha=0.2, linewidth=0)
            every = sorted(100 * share for row in found.values() for share in row)
            print(f"{name}, {title}: {every[0]:.2f} / {statistics.median(every):.2f} /"
                  f" {every[-1]:.2f} % (least, median, greatest)")  # fmt: skip
        axis.set(title=title, xlabel="trainer step", ylabel="%", yscale="log")
        axis.set_yticks([0.3, 1, 3], ["0.3", "1", "3"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
