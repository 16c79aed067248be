"""Score centering: accuracy with and without it, on stale data and with explorers in 8 bits.

    python benchmarks/centering.py [--bounds=0,4,8,16] [--quantizations=int8,float8_e4m3fn]
        [--seeds=300,...,307] [--steps=60] [--sft-steps=400] [--results=docs/centering.jsonl]
        [--document=docs/staleness.md]
    python benchmarks/centering.py --report

The runs are those of `benchmarks/staleness.py`, with the loss `reinforce` and exact score
centering. Explorers in 8 bits have data of staleness 0. Runs that have a line in the results are
not done again. The tables go into the document; each compares a run with the run of the same seed
without centering.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from pathlib import Path
from typing import Any

from staleness import ROOT, Case, parser_of, results_of
from staleness_report import between_marks

BEGIN = "<!-- measured: benchmarks/centering.py -->"
_CENTERED = ", centered"
PAIRS = ("no correction", "truncated IS")
"""Algorithms that are compared with themselves with centering."""
ALGORITHMS = [name + end for name in PAIRS for end in ("", _CENTERED)]


def _row(lines: list[dict[str, Any]], bound: int, quantization: str) -> str:
    """Returns the row of one way to draw."""
    found = {
        name: {
            line["seed"]: line
            for line in lines
            if (line["algorithm"], line["bound"], line["quantization"])
            == (name, bound, quantization)
        }
        for name in ALGORITHMS
    }
    cells = [quantization if quantization != "none" else f"staleness {bound}"]
    for name in ALGORITHMS:
        of = sorted(100 * line["accuracy"] for line in found[name].values())
        cells.append(f"{statistics.median(of):.0f} ({of[0]:.0f} to {of[-1]:.0f})" if of else "")
    for name in PAIRS:
        plain, centered = found[name], found[name + _CENTERED]
        gained = [
            100 * (centered[seed]["accuracy"] - plain[seed]["accuracy"])
            for seed in centered.keys() & plain.keys()
        ]
        if len(gained) < 2:
            cells.append("")
            continue
        error = statistics.stdev(gained) / len(gained) ** 0.5
        cells.append(f"{statistics.mean(gained):+.1f} ± {error:.1f}")
    distances = [
        line["second_half"]["sampler_distance"]
        for line in found["no correction, centered"].values()
    ]
    cells.append(f"{statistics.median(distances):.3f}" if distances else "")
    return f"| {' | '.join(cells)} |"


def report(lines: list[dict[str, Any]]) -> str:
    """Returns the table of the results."""
    ways = sorted(
        {(line["quantization"] != "none", line["bound"], line["quantization"]) for line in lines}
    )
    gains = [f"gain, {name}" for name in PAIRS]
    header = ["drawn with", *ALGORITHMS, *gains, "`sampler_distance`"]
    rows = [_row(lines, bound, quantization) for _, bound, quantization in ways]
    return "\n".join([f"| {' | '.join(header)} |", "| --- " * len(header) + "|", *rows])


def main() -> None:
    """Makes the runs that have no result yet, then reports."""
    arguments = _arguments()
    ways = [(bound, "none") for bound in arguments.bounds]
    ways += [(0, quantization) for quantization in arguments.quantizations]
    cases = [
        Case(name, bound, seed, quantization)
        for seed, (bound, quantization), name in itertools.product(
            arguments.seeds, ways, ALGORITHMS
        )
    ]
    lines = results_of(cases, arguments)
    if not lines:
        raise SystemExit("There are no results yet: run the study first.")
    between_marks(arguments.document, BEGIN, report(lines))


def _arguments() -> argparse.Namespace:
    title = (__doc__ or "").splitlines()[0]
    parser = parser_of(title, bounds=[0, 4, 8, 16])
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "centering.jsonl")
    parser.add_argument(
        "--quantizations", type=lambda text: text.split(","), default=["int8", "float8_e4m3fn"]
    )
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "staleness.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
