"""Runs whose reward also wants short answers, with and without a filter on the outcome.

    python benchmarks/shaped_rewards.py [--seeds=200:207] [--cases='shaped;shaped, filter']
        [--steps=60] [--config=configs/arithmetic.py] [--results=runs/shaped_rewards.jsonl]
        [--set=SETTING=VALUE ...]
    python benchmarks/shaped_rewards.py --report [...]

In the `shaped` cases the reward is `exact + 0.1 * length_band`, which prefers a single token to the
two to four of an answer. All runs have 48 prompts of 8 completions a step, GRPO and fresh data, in
one process. Runs the launcher once for each seed and case, one run at a time, and adds a line to
the results. A run that has a line is not repeated, so the command can be stopped at any time. At
the end, or with `--report`, it prints the least, the median and the greatest of each case over
seeds: held-out accuracy before RL and after it, and the greatest share of a step's advantages that
was of groups with equal outcomes (`shaped_advantages`).
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import seeds

from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines

SETTINGS = (
    "launch.colocate=true",
    "launch.share_devices=true",
    "replay.backend=embedded",
    "algorithm.over_sampling=1.0",
    "algorithm.keep=first",
    "trainer.groups_per_step=48",
    "trainer.group_size=8",
)
SHAPED = "task.reward=exact + 0.1 * length_band(greatest=1, margin=4)"
FILTER = "algorithm.filter=outcome"
CASES: dict[str, tuple[str, ...]] = {
    "outcome alone": ("algorithm.name=grpo",),
    "shaped": ("algorithm.name=grpo", SHAPED),
    "shaped, filter": ("algorithm.name=grpo", SHAPED, FILTER),
    "shaped, filter, none replaced": (
        "algorithm.name=grpo",
        SHAPED,
        FILTER,
        "algorithm.max_attempts=1",
    ),
    "shaped, gdpo": ("algorithm.name=gdpo", SHAPED),
    "shaped, gdpo, filter": ("algorithm.name=gdpo", SHAPED, FILTER),
}
"""Settings of each case, beside those of all."""

COLUMNS: dict[str, Callable[[dict[str, Any]], float]] = {
    "before RL, %": lambda line: 100 * line["accuracy"][0],
    "after RL, %": lambda line: 100 * line["accuracy"][-1],
    "greatest share of shaping, %": lambda line: (
        100 * max(share or 0.0 for share in line["shaped_advantages"])
    ),
}


def main() -> None:
    """Makes the runs that have no result yet, then reports."""
    arguments = _arguments()
    writer = JsonLinesWriter(arguments.results)  # Creates the file if it is missing.
    more = (*SETTINGS, f"trainer.steps={arguments.steps}", *arguments.set)
    runs = {
        (seed, name): seeds.Case(arguments.config, "synchronous", seed, (*more, *CASES[name]))
        for seed, name in itertools.product(arguments.seeds, arguments.cases)
    }
    done = [seeds.case_of(line) for line in read_json_lines(arguments.results)]
    for case in runs.values():
        if case not in done and not arguments.report:
            print(f"# {', '.join(case.settings[len(more) :])}", flush=True)
            writer.write(seeds.run(case, arguments.steps, curves=("shaped_advantages",)))
    writer.close()
    found = {seeds.case_of(line): line for line in read_json_lines(arguments.results)}
    print("\n".join(table({key: found[one] for key, one in runs.items() if one in found})))


def table(lines: dict[tuple[int, str], dict[str, Any]]) -> list[str]:
    """Writes the least, the median and the greatest of each case as a Markdown table.

    Args:
      lines: results by seed and name of the case.
    """
    rows = [seeds.table_row(["case", "seeds", *COLUMNS]), "|---" * (len(COLUMNS) + 2) + "|"]
    for name in CASES:
        if of_case := [line for (_, of), line in lines.items() if of == name]:
            spreads = [
                seeds.spread([value(line) for line in of_case]) for value in COLUMNS.values()
            ]
            rows.append(seeds.table_row([name, str(len(of_case)), *spreads]))
    return rows


def _cases(text: str) -> Sequence[str]:
    names = [name.strip() for name in text.split(";")]
    if unknown := [name for name in names if name not in CASES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {'; '.join(CASES)}")
    return names


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="configs/arithmetic.py")
    parser.add_argument("--seeds", type=seeds.seeds_of, default=list(range(200, 208)))
    parser.add_argument("--cases", type=_cases, default=list(CASES), help="separated by ;")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--results", type=Path, default=seeds.ROOT / "runs" / "shaped_rewards.jsonl"
    )
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE")
    parser.add_argument("--report", action="store_true", help="only report the results so far")
    return parser.parse_args()


if __name__ == "__main__":
    main()
