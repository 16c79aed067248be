"""Figures of a commit: speed, compiled programs, and sizes of sources and tests.

    python benchmarks/figures.py [--rounds=30]     # measures, and prints the figures
    python benchmarks/figures.py --append         # … and adds a line to benchmarks/figures.jsonl
    python benchmarks/figures.py --check          # … and fails at a regression of over 10 %
    python benchmarks/figures.py --draw           # draws docs/figures.png from the lines

*Speed* is the CPU time of pieces of a run's work on one core, in times of a fixed reference that is
measured in turns (`benchmarks/figure_workloads.py`): least, median and greatest of the rounds. It
takes about two minutes. *Programs* sums up `benchmarks/compiled_figures.jsonl`, *sizes* are those
of `benchmarks/size.py`, and the seconds of tests those of `tests/measured_secs.json`.

`--check` compares with the newest line of the file. What seems worse is measured again, and only
what is worse both times is a regression. Sizes and the seconds of tests are not compared.
"""

from __future__ import annotations

import argparse
import ast
import collections
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import size
from figure_lines import CHANGE, REGRESSION, SPEED_CHANGE, Line, changes, compare, picture, repeated

from rl_sync.cluster import malloc
from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines

ROOT = Path(__file__).resolve().parents[1]
LINES, PICTURE = Path(__file__).with_suffix(".jsonl"), ROOT / "docs" / "figures.png"
ROUNDS = 30
_ALONE = "RL_SYNC_FIGURES"
README = "readme"
TIERS = ("nightly", "aot", "gate", README)


def speed(rounds: int, only: Collection[str] = ()) -> dict[str, Any]:
    """Measures pieces of work in turns with their references.

    Args:
      rounds: rounds after the first, which compiles.
      only: names of the pieces to measure; all if empty.

    Returns:
      `speed`: least, median and greatest of each piece, in times of its reference. `reference_ms`:
      the median CPU time of each reference.
    """
    from figure_workloads import FigureReferences, workloads

    ratios: dict[str, list[float]] = collections.defaultdict(list)
    secs: dict[str, list[float]] = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        references = FigureReferences(Path(directory)).all
        with workloads(Path(directory)) as all_work:
            chosen = {name: one for name, one in all_work.items() if not only or name in only}
            gc.collect()
            gc.freeze()  # Passes over what imports made would come at random.
            for number in range(rounds + 1):
                for name, (work, reference) in chosen.items():
                    before = references[reference]()
                    own = work(number)
                    both = (before + references[reference]()) / 2
                    if number:
                        ratios[name].append(own / both)
                        secs[reference].append(both)
    return {
        "speed": {
            name: [round(one, 3) for one in (min(found), statistics.median(found), max(found))]
            for name, found in ratios.items()
        },
        "reference_ms": {
            name: round(1000 * statistics.median(found), 2) for name, found in secs.items()
        },
    }


def programs() -> dict[str, dict[str, float]]:
    """Returns for each kind of accelerator the number of compiled cases, and sums over them.

    Kernels are counted on GPUs alone.
    """
    sums: dict[str, dict[str, float]] = {}
    for line in read_json_lines(Path(__file__).with_name("compiled_figures.jsonl")):
        target = line["case"].partition(", ")[2].partition(":")[0]
        found = sums.setdefault(target, {"cases": 0, "peak_gb": 0.0})
        found["cases"] += 1
        found["peak_gb"] = round(found["peak_gb"] + line["peak_gb"], 3)
        if "kernels" in line:
            found["kernels"] = found.get("kernels", 0) + line["kernels"]
    return dict(sorted(sums.items()))


def tests() -> dict[str, int]:
    """Returns the number of test functions of each tier; a table of cases is one."""
    counts = dict.fromkeys(TIERS, 0)
    for path in (ROOT / "tests").rglob("test_*.py"):
        body = ast.parse(path.read_text()).body
        of_file = [ast.unparse(one) for one in body if ast.unparse(one).startswith("pytestmark")]
        for one in body:
            if isinstance(one, ast.FunctionDef) and one.name.startswith("test_"):
                marks = " ".join([*of_file, *map(ast.unparse, one.decorator_list)])
                counts[next((name for name in TIERS if f"mark.{name}" in marks), README)] += 1
    return counts


def test_secs() -> dict[str, float]:
    """Returns the seconds of the tests of each tier, as they were last measured."""
    sums = dict.fromkeys(TIERS, 0.0)
    for tiers in json.loads((ROOT / "tests" / "measured_secs.json").read_text()).values():
        for name, secs in tiers.items():
            sums[name] += secs
    return {name: round(secs) for name, secs in sums.items()}


def measure(rounds: int) -> dict[str, Any]:
    """Measures all quantities, prints a line of JSON for each group, and returns the whole line."""
    version = platform.python_version_tuple()
    line: dict[str, Any] = {
        "commit": _head(),
        "python": ".".join(version[:2]),
        "jax": metadata.version("jax"),
        "cores": os.cpu_count(),
    }
    groups = (
        lambda: {"sizes": size.sizes()},
        lambda: {"tests": tests(), "test_secs": test_secs()},
        lambda: {"programs": programs()},
        lambda: speed(rounds),
    )
    for group in groups:
        found = group()
        print(json.dumps(found), flush=True)
        line |= found
    return line


def check(rounds: int, now: Line, before: Line) -> int:
    """Compares with an earlier line, measures again what seems worse, and prints what it found.

    Returns:
      The exit status: 1 if there is a regression.
    """
    first = compare(now, before)
    for note in first.notes:
        print(note)
    again = {name.partition(" ")[2] for name in first.worse if name.startswith("speed ")}
    if again:
        print(f"Measured again, as it seems worse: {', '.join(sorted(again))}.", flush=True)
    second = first
    if again:  # Whether machines are alike was decided with all references.
        second = compare({**now, "speed": speed(rounds, again)["speed"]}, before)
    found = repeated(first, second)
    for sentence in found:
        print(sentence)
    if not found:
        print(f"No figure is worse than at {before['commit']} by more than {REGRESSION:.0%}.")
    return int(bool(found))


def append(line: Line, lines: Sequence[Line], path: Path) -> str:
    """Adds a line to a file if it says something new; returns a sentence of what was done."""
    if any(one["commit"] == line["commit"] for one in lines):
        return f"{path.name} has a line of {line['commit']}: nothing is appended."
    changed = changes(line, lines[-1]) if lines else ["the first line"]
    if not changed:
        return (
            f"No figure changed by over {CHANGE:.0%}, and no speed by over {SPEED_CHANGE:.0%}:"
            " nothing is appended."
        )
    writer = JsonLinesWriter(path)
    writer.write(line)
    writer.close()
    return f"Appended to {path.name}: {', '.join(changed)}."


def main() -> int:
    """Measures, and does what the flags say; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of which the median counts")
    parser.add_argument("--append", action="store_true", help="add a line of this commit")
    parser.add_argument("--check", action="store_true", help="fail at a regression of over 10 %%")
    parser.add_argument("--draw", action="store_true", help="draw the lines; does not measure")
    parser.add_argument("--results", type=Path, default=LINES, help="the file of the lines")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    lines = read_json_lines(arguments.results) if arguments.results.exists() else []
    if (arguments.check or arguments.draw) and not lines and not arguments.append:
        sys.exit(f"{arguments.results} has no lines yet: add one with --append.")
    status = 0
    if arguments.append or arguments.check or not arguments.draw:
        _compute_alone()
        line = measure(arguments.rounds)
        if arguments.check:
            status = check(arguments.rounds, line, lines[-1])
        if arguments.append:
            print(append(line, lines, arguments.results))
    if arguments.draw:
        drawn = picture(read_json_lines(arguments.results))
        drawn.savefig(arguments.picture, dpi=100, metadata={"Software": None})
        print(arguments.picture)
    return status


def _head() -> str:
    command = ["git", "rev-parse", "--short=10", "HEAD"]
    try:
        return subprocess.check_output(command, cwd=ROOT, text=True).strip()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"Figures are of a commit: run this in a clone, with git ({error}).")


def _compute_alone() -> None:
    """Starts this program again on one core, with the allocator of a run's roles."""
    if _ALONE not in os.environ:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        environment = {**malloc.environment(os.environ), "JAX_PLATFORMS": "cpu", _ALONE: "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)


if __name__ == "__main__":
    sys.exit(main())
