"""The nightly tests in parts, of which `.ci/run` runs one each time.

    python -m tests.nightly                    # runs the part of the newest commit
    python -m tests.nightly --part=3           # another part
    python -m tests.nightly --plan             # prints all parts, and those of the last commits
    python -m pytest -m nightly                # runs all parts

A part has whole files, and takes about `PART_SECS` by `tests/measured_secs.json`. The commits of
the main branch are counted in rounds, of as many commits as there are parts. Within a round each
commit takes a part that no earlier one has, by its hash. So the commits of a round cover all parts,
and runs of commits that are far apart take parts at random.

A test that fails is tried once more, alone. If it fails again, the command ends with status 1 and
prints how to repeat it.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import measured_secs

PART_SECS = 360.0
UNMEASURED_SECS = 60.0
PROCESSES = 3
"""Processes that run tests side by side, as where the seconds were measured."""
ROOT = Path(__file__).resolve().parents[1]
_MARK = "mark.nightly"
_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"


def files() -> dict[str, float]:
    """Returns the files with nightly tests, and the seconds of these."""
    measured = measured_secs.read("nightly")
    paths = [path for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    marked = [path for path in paths if _MARK in (text := path.read_text()) or "samples(" in text]
    names = [path.relative_to(ROOT).as_posix() for path in marked]
    return {name: measured.get(name, UNMEASURED_SECS) for name in names}


def parts(secs: dict[str, float]) -> list[list[str]]:
    """Cuts files into parts of nearly equal length, the longest first.

    A file that takes longer than a part is a part of its own.
    """
    count = max(1, math.ceil(sum(secs.values()) / PROCESSES / PART_SECS))
    heap: list[tuple[float, int]] = [(0.0, index) for index in range(count)]
    made: list[list[str]] = [[] for _ in range(count)]
    for name in sorted(secs, key=lambda name: (-secs[name], name)):
        took, index = heapq.heappop(heap)
        made[index].append(name)
        heapq.heappush(heap, (took + secs[name], index))
    return made


def part_of(commits: Sequence[str], count: int) -> int:
    """Returns the part of the last of the main branch's commits, which are in their order."""
    round_start = (len(commits) - 1) // count * count
    left = list(range(count))
    part = 0
    for commit in commits[round_start:]:
        part = left.pop(int(commit, 16) % len(left))
    return part


def history() -> list[str]:
    """Returns the hashes of the commits of this branch, the oldest first."""
    command = ["git", "rev-list", "--first-parent", "--reverse", "HEAD"]
    return subprocess.check_output(command, cwd=ROOT, text=True).split()


def run(names: Sequence[str]) -> int:
    """Runs the nightly tests of files; tries those that fail once more. Returns the exit status."""
    _FAILED.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-m", "nightly"]
    # Their seconds are those of files side by side.
    status = subprocess.call([*command, f"--numprocesses={PROCESSES}", *names], cwd=ROOT)
    failed = [*json.loads(_FAILED.read_text())] if _FAILED.exists() else []
    if status == 0 or (status == 1 and not failed):
        return status
    if not failed:
        return status  # Nothing was run, such as with an error in a file.
    print(f"\n{len(failed)} failed, and are tried once more, alone.", flush=True)
    again = subprocess.call([*command, "--numprocesses=0", *failed], cwd=ROOT)
    if again:
        ids = " ".join(f"'{one}'" for one in failed)
        print(f"\nTo repeat it: python -m pytest --numprocesses=0 -m nightly {ids}")
    return again


def show_plan(made: Sequence[Sequence[str]], secs: dict[str, float]) -> None:
    """Prints the parts, and which of them the last commits take."""
    for index, names in enumerate(made):
        took = sum(secs[name] for name in names)
        print(f"part {index}: {took / PROCESSES:.0f} s, {len(names)} files")
        for name in names:
            print(f"  {secs[name]:6.1f}  {name}")
    commits = history()
    for back in reversed(range(min(10, len(commits)))):
        upto = commits[: len(commits) - back]
        print(f"{upto[-1][:12]} takes part {part_of(upto, len(made))}")


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", type=int, help="the part to run, in place of the newest commit's")
    parser.add_argument("--plan", action="store_true", help="print the parts, and run nothing")
    arguments = parser.parse_args()
    secs = files()
    made = parts(secs)
    if arguments.plan:
        show_plan(made, secs)
        return 0
    part = part_of(history(), len(made)) if arguments.part is None else arguments.part
    if part not in range(len(made)):
        parser.error(f"--part={part}: there are parts 0 to {len(made) - 1}.")
    names = made[part]
    print(f"Part {part} of {len(made)} of the nightly tests, {len(names)} files.", flush=True)
    return run(names)


if __name__ == "__main__":
    sys.exit(main())
