"""Simulated runs with faults over ranges of seeds, and whether a rule was broken.

    python benchmarks/simulated_seeds.py [--ranges=52000000:2000,53000000:500,54000000:500]
        [--results=docs/evidence/simulated_seeds.jsonl]

Each range is FIRST:COUNT. It adds a line to the results: seeds, events, deaths of processes, and
the seeds that broke a rule. A range that has a line is not simulated again.
"""

from __future__ import annotations

import argparse
import collections
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines
from rl_sync.simulation.faults.search import examine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "evidence" / "simulated_seeds.jsonl"
RANGES = "52000000:2000,53000000:500,54000000:500"


def simulated(first: int, count: int) -> dict[str, Any]:
    """Simulates a range of seeds; returns its line."""
    failed, totals = list[int](), collections.Counter[str]()
    for seed in range(first, first + count):
        found = examine(seed)
        totals["events"] += found.handled
        totals["deaths"] += found.crashes
        if found.failed:
            failed.append(seed)
    return {"first": first, "seeds": count, **totals, "failed": failed}


def table(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Writes a line for each range as a Markdown table."""
    rows = ["| seeds | events | deaths of processes | runs that broke a rule |", "|---" * 4 + "|"]
    for line in lines:
        first, last = line["first"], line["first"] + line["seeds"] - 1
        counts = f"{line['events']:,} | {line['deaths']:,} | {len(line['failed'])}"
        rows.append(f"| {first:,} to {last:,} | {counts} |")
    return rows


def main() -> None:
    """Simulates the ranges that have no result yet, and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranges", default=RANGES)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)  # Each fault of a simulated run logs what it does.
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    writer = JsonLinesWriter(arguments.results)
    known = {(line["first"], line["seeds"]) for line in read_json_lines(arguments.results)}
    for text in arguments.ranges.split(","):
        first, count = map(int, text.split(":"))
        if (first, count) not in known:
            writer.write(simulated(first, count))
    writer.close()
    print("\n".join(table(read_json_lines(arguments.results))))


if __name__ == "__main__":
    main()
