"""The nightly tests in parts, and those of other tiers, of which `.ci/run` runs one part each time.

    python -m tests.nightly                    # runs the part of the newest commit
    python -m tests.nightly --part=3           # another part
    python -m tests.nightly --plan             # prints all parts, and those of the last commits
    python -m tests.nightly --tier=gate        # the same for the tests of the gate, or for `aot`
    python -m pytest -m nightly                # runs all parts

A part has whole files, and takes about `Tier.part_secs` by `tests/measured_secs.json`, on a busy
machine up to three times as long. A file that takes longer than `Tier.piece_secs` is cut
into pieces. The commits of the main branch are counted in rounds, of as many commits as there are
parts. Within a round each commit takes a part that no earlier one has, by its hash. So the commits
of a round cover all parts, and runs of commits that are far apart take parts at random.

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
from typing import NamedTuple

from tests import measured_secs

UNMEASURED_SECS = 60.0
PROCESSES = 3
"""Processes that run tests side by side, as where the seconds were measured."""
ROOT = Path(__file__).resolve().parents[1]
_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"


class Tier(NamedTuple):
    """Tests that are run in parts.

    Attributes:
      mark: their marker.
      part_secs: seconds of a part.
      piece_secs: maximum seconds of a piece of a file.
      has_samples: whether tests with the marker `samples` leave cases to it.
    """

    mark: str
    part_secs: float
    piece_secs: float
    has_samples: bool = True


TIERS = {
    tier.mark: tier
    for tier in (
        Tier("nightly", 130.0, 120.0),
        Tier("gate", 200.0, math.inf),
        Tier("aot", 130.0, 120.0, has_samples=False),
    )
}


class Piece(NamedTuple):
    """Tests of a file: every `total`-th of its cases, from that with the number on."""

    path: str
    number: int = 0
    total: int = 1

    def __str__(self) -> str:
        whole = self.total == 1
        return self.path if whole else f"{self.path}, piece {self.number + 1} of {self.total}"


def pieces(tier: Tier) -> dict[Piece, float]:
    """Returns the files with tests of a tier, long ones in pieces, and the seconds of each."""
    measured = measured_secs.read(tier.mark)
    found: dict[Piece, float] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text()
        marks = [f"mark.{tier.mark}", *(["samples("] if tier.has_samples else [])]
        if any(mark in text for mark in marks):
            path = file.relative_to(ROOT).as_posix()
            secs = measured.get(path, UNMEASURED_SECS)
            count = max(1, math.ceil(secs / tier.piece_secs))
            found |= {Piece(path, number, count): secs / count for number in range(count)}
    return found


def parts(secs: dict[Piece, float], part_secs: float) -> list[list[Piece]]:
    """Divides pieces into parts of nearly equal length, the longest first."""
    count = max(1, math.ceil(sum(secs.values()) / PROCESSES / part_secs))
    heap: list[tuple[float, int]] = [(0.0, index) for index in range(count)]
    made: list[list[Piece]] = [[] for _ in range(count)]
    for piece in sorted(secs, key=lambda piece: (-secs[piece], piece)):
        took, index = heapq.heappop(heap)
        made[index].append(piece)
        heapq.heappush(heap, (took + secs[piece], index))
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


def run(made: Sequence[Piece], mark: str) -> int:
    """Runs a part; tries tests that fail once more. Returns the exit status."""
    _FAILED.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-m", mark]
    cut = [f"--piece={one.path}:{one.number}/{one.total}" for one in made if one.total > 1]
    paths = dict.fromkeys(one.path for one in made)
    # Their seconds are those of files side by side.
    status = subprocess.call([*command, f"--numprocesses={PROCESSES}", *cut, *paths], cwd=ROOT)
    failed = [*json.loads(_FAILED.read_text())] if _FAILED.exists() else []
    if status == 0 or not failed:
        return (
            status  # With another status than 0, nothing was run, such as with an error in a file.
        )
    print(f"\n{len(failed)} failed, and are tried once more, alone.", flush=True)
    again = subprocess.call([*command, "--numprocesses=0", *failed], cwd=ROOT)
    if again:
        ids = " ".join(f"'{one}'" for one in failed)
        print(f"\nTo repeat it: python -m pytest --numprocesses=0 -m {mark} {ids}")
    return again


def show_plan(made: Sequence[Sequence[Piece]], secs: dict[Piece, float]) -> None:
    """Prints the parts, and which of them the last commits take."""
    for index, part in enumerate(made):
        took = sum(secs[piece] for piece in part)
        print(f"part {index}: {took / PROCESSES:.0f} s")
        for piece in part:
            print(f"  {secs[piece]:6.1f}  {piece}")
    commits = history()
    for back in reversed(range(min(10, len(commits)))):
        upto = commits[: len(commits) - back]
        print(f"{upto[-1][:12]} takes part {part_of(upto, len(made))}")


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", type=int, help="the part to run, in place of the newest commit's")
    parser.add_argument("--tier", choices=TIERS, default="nightly", help="which tests")
    parser.add_argument("--plan", action="store_true", help="print the parts, and run nothing")
    arguments = parser.parse_args()
    tier = TIERS[arguments.tier]
    secs = pieces(tier)
    made = parts(secs, tier.part_secs)
    if arguments.plan:
        show_plan(made, secs)
        return 0
    part = part_of(history(), len(made)) if arguments.part is None else arguments.part
    if part not in range(len(made)):
        parser.error(f"--part={part}: there are parts 0 to {len(made) - 1}.")
    print(f"Part {part} of {len(made)} of the {tier.mark} tests.", flush=True)
    return run(made[part], tier.mark)


if __name__ == "__main__":
    sys.exit(main())
