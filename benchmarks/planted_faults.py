"""How many of forty planted faults the tests notice, by tier of tests.

    python benchmarks/planted_faults.py --json=runs/planted_faults.jsonl
    python benchmarks/planted_faults.py --only=schedule --tests tests/test_schedule.py
    python benchmarks/planted_faults.py --root=../older --expression=nightly=slow \
        --expression='gate=gate and not slow'
    python benchmarks/planted_faults.py --list

The tiers are README's tests, those of the gate, and the nightly ones. Each tier runs once in a copy
of the repository whose functions with a fault have marks: so it is known which tests *reach* which
fault, and how long each test takes. Then each fault is planted alone in another copy, and its tests
run until one fails, the quick ones first: those that reach it, then the others of the same files,
since tests share fixtures, cached runs and compiled programs. A fault is *noticed* if that test
fails again by itself, and passes without the fault. Tests of a later tier run only for faults that
no earlier one noticed (`--every-tier` changes that).

The table has a line for each fault: the first tier that noticed it, the test, and the seconds until
then. Otherwise it says `missed` (all tests passed), `unreached` (no test gets there) or `time up`
(`--limit` seconds passed). The totals add up the tiers. A fault that is reached only in a process
with an emptied environment counts as unreached.

A measurement takes hours. `--json` keeps each result: the same command goes on where it was, unless
code, tests or the fault have changed since. The copies are in runs/, and deleted at the end.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import hashlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from planted_fault_copies import SESSION, Copy, TestRun, reached, tracked
from planted_fault_marks import FOLDER
from planted_fault_table import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[1]
EXPRESSIONS: dict[str, str | None] = {
    "readme": None,  # As pyproject.toml says.
    "gate": "gate and not nightly",
    "nightly": "nightly",
}
"""What each tier gives to pytest's `-m`."""
NAMES = {"readme": "README's tests", "gate": "the gate", "nightly": "the nightly tests"}
_STEPS_SECS = (1.0, 5.0, 25.0, float("inf"))
_MEASURED = ("rl_sync/", "launch/", "configs/", "tests/", "pyproject.toml")


class Reach(NamedTuple):
    """Tests of a tier, and the faults that they reach.

    Attributes:
      secs: seconds of each test, with its fixtures.
      tests: tests that reach each fault, by its name.
    """

    secs: dict[str, float]
    tests: dict[str, list[str]]


class Noticed(NamedTuple):
    """Outcome of a fault in a tier.

    Attributes:
      outcome: `noticed`, `missed`, `unreached` or `time up`.
      test: the test that noticed it, if one did.
      secs: seconds until then.
      doubtful: tests that failed, but not again, or also without the fault.
    """

    outcome: str
    test: str
    secs: float
    doubtful: list[str]


class Results:
    """Lines of results, which stay if the measurement is interrupted.

    Args:
      path: their file; None to keep them in memory alone.
      state: what the results depend on; lines of other states are ignored.
    """

    def __init__(self, path: Path | None, state: str) -> None:
        self._path, self._state = path, state
        text = path.read_text() if path and path.exists() else ""
        if path and text and not text.endswith("\n"):
            path.write_text(text + "\n")  # It was being written when a measurement stopped.
        parsed = map(_parsed, text.splitlines())
        found = [line for line in parsed if line and line["state"] == state]
        self._found = {json.dumps(line["of"]): line["is"] for line in found}

    def get(self, *of: Any) -> Any:
        """Returns a result; None if there is none yet."""
        return self._found.get(json.dumps(of))

    def put(self, value: Any, *of: Any) -> None:
        """Adds a result."""
        self._found[json.dumps(of)] = value
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps({"state": self._state, "of": of, "is": value}) + "\n")


def _is_there(root: Path, fault: Fault) -> bool:
    """Says whether a fault can be planted; an older commit may have another text there."""
    file = root / fault.path
    is_there = file.is_file() and file.read_text().count(fault.old) == 1
    if not is_there:
        print(f"# {fault.name} is left out: {file} does not have its text once.")
    return is_there


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:
        return None


def main() -> None:
    """Measures what has no result yet, and prints the table."""
    arguments = _arguments()
    faults = [fault for fault in FAULTS if any(part in fault.name for part in arguments.only)]
    if arguments.list:
        print("\n".join(f"{fault.name} ({fault.path}): {fault.why}" for fault in faults))
        return
    faults = [fault for fault in faults if _is_there(arguments.root, fault)]
    results = Results(arguments.json, _state(arguments.root))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # So that tests under way end, too.
    bench = Bench(arguments, faults, results)
    with bench.copies():
        for tier in arguments.tiers:
            bench.measure(tier)
    print("\n".join(table(faults, arguments.tiers, bench.found)))


class Bench:
    """Measures faults in copies of a repository.

    Args:
      arguments: the command line.
      faults: the faults.
      results: results so far.

    Attributes:
      found: what became of each fault, by its name and by tier.
    """

    def __init__(
        self, arguments: argparse.Namespace, faults: Sequence[Fault], results: Results
    ) -> None:
        self._arguments, self._faults, self._results = arguments, faults, results
        self.found: dict[str, dict[str, Noticed]] = {fault.name: {} for fault in faults}

    @contextlib.contextmanager
    def copies(self) -> Iterator[None]:
        """Makes the folder of the copies, which lasts for the block.

        It is no subfolder of /tmp, which sandboxes hide from programs.
        """
        runs = ROOT / "runs"
        runs.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=runs, prefix="planted-", ignore_cleanup_errors=True
        ) as name:
            self._folder = Path(name)
            self._folder.chmod(0o755)  # Programs of other users read the package.
            yield

    @functools.cached_property
    def _clean(self) -> Copy:
        return Copy(self._arguments.root, self._folder / "clean")

    @functools.cached_property
    def _planted(self) -> Copy:
        return Copy(self._arguments.root, self._folder / "planted")

    def measure(self, tier: str) -> None:
        """Measures all faults in a tier that have no result in it."""
        reach: Reach | None = None
        for number, fault in enumerate(self._faults, 1):
            before = self.found[fault.name].values()
            if not self._arguments.every_tier and any(one.outcome == "noticed" for one in before):
                continue
            of = (tier, *self._scope(tier), self._arguments.limit, *fault)
            if (known := self._results.get(*of)) is None:
                reach = reach or self._reach(tier)
                known = self._notice(fault, reach)
                self._results.put(known, *of)
                print(f"# {tier} {number}: {_line(fault, Noticed(*known))}", flush=True)
            self.found[fault.name][tier] = Noticed(*known)

    def _scope(self, tier: str) -> list[Any]:
        """Returns what chooses the tests of a tier."""
        return [self._arguments.expression[tier], self._arguments.tests]

    def _reach(self, tier: str) -> Reach:
        """Returns which tests reach which of all faults; runs the tier if that is not known."""
        of = ("reach", tier, *self._scope(tier), FAULTS)
        if (known := self._results.get(*of)) is not None:
            return Reach(*known)
        expression, tests = self._scope(tier)
        chosen = [] if expression is None else ["-m", expression]
        folder = self._folder / "reached"
        folder.mkdir()
        folder.chmod(0o777)  # Workers of other users write there, too.
        marked = Copy(self._arguments.root, self._folder / "marked")
        faults = [fault for fault in FAULTS if _is_there(self._arguments.root, fault)]
        marked.mark(faults)
        began = time.monotonic()
        run = marked.run(
            ["-n", self._arguments.reach_processes, *chosen, *tests],
            variables={FOLDER: str(folder)},
        )
        if SESSION in run.failed:
            sys.exit(f"The tests of {tier} did not run:\n{run.output[-3000:]}")
        found = Reach(run.secs, {fault.name: reached(folder, fault) for fault in FAULTS})
        self._results.put(found, *of)
        print(
            f"# {tier}: {len(run.secs)} tests reach"
            f" {sum(map(bool, found.tests.values()))} of {len(FAULTS)} faults;"
            f" {time.monotonic() - began:.0f} s, {len(run.failed)} failed with marks"
            f" {run.failed[:3]}",
            flush=True,
        )
        marked.delete()
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        return found

    def _notice(self, fault: Fault, reach: Reach) -> Noticed:
        """Runs the tests of a fault until one notices it."""
        began = time.monotonic()
        until, doubtful = began + self._arguments.limit, list[str]()
        rounds = rounds_of(reach, fault)
        with self._planted.planted(fault):
            for tests in rounds:
                while tests:
                    run = self._run(self._planted, tests, reach, until - time.monotonic())
                    secs = time.monotonic() - began
                    if not run.failed:
                        if run.is_late:
                            return Noticed("time up", "", secs, doubtful)
                        break
                    if self._is_sure(run.failed[0], tests, reach):
                        return Noticed("noticed", run.failed[0], secs, doubtful)
                    doubtful.append(run.failed[0])
                    if run.failed[0] == SESSION:
                        break
                    tests = [
                        one
                        for one in tests
                        if one not in run.secs and not one.startswith(f"{run.failed[0]}::")
                    ]
        return Noticed("missed" if rounds else "unreached", "", time.monotonic() - began, doubtful)

    def _is_sure(self, test: str, tests: Sequence[str], reach: Reach) -> bool:
        """Says whether a test fails again, and passes without the fault."""
        if test == SESSION:
            those = list(tests)
        else:  # Of a file that cannot be collected, all tests.
            those = [one for one in tests if one == test or one.startswith(f"{test}::")]
        again = self._run(self._planted, those, reach, self._arguments.limit)
        if not again.failed:
            return False
        without = self._run(self._clean, those, reach, self._arguments.limit)
        return not without.failed and not without.is_late and bool(without.secs)

    def _run(self, copy: Copy, tests: Sequence[str], reach: Reach, limit_secs: float) -> TestRun:
        """Runs tests until one fails; one that takes much longer than before has failed."""
        files = {test.partition("::")[0] for test in tests}
        longest = max(s for test, s in reach.secs.items() if test.partition("::")[0] in files)
        options = ["-x", "-n", self._arguments.processes, f"--timeout={60 + 5 * longest:.0f}"]
        return copy.run(options, tests=tests, limit_secs=max(1.0, limit_secs))


def rounds_of(reach: Reach, fault: Fault) -> list[list[str]]:
    """Returns the tests to run for a fault, in rounds of similar duration.

    Those in the folder that mirrors the fault's are first. The tests of a file stay together in a
    round, so that they share fixtures.
    """
    direct = [test for test in reach.tests[fault.name] if test in reach.secs]
    folder = "/".join(("tests", *Path(fault.path).parts[1:-1], ""))
    near = [test for test in direct if test.startswith(folder)]
    far = [test for test in direct if not test.startswith(folder)]
    files = {test.partition("::")[0] for test in direct}
    beside = [
        test for test in reach.secs if test.partition("::")[0] in files and test not in {*direct}
    ]
    found: list[list[str]] = []
    for tests in (near, far, beside):
        least = 0.0
        for most in _STEPS_SECS:
            found.append(_ordered({t: s for t in tests if least <= (s := reach.secs[t]) < most}))
            least = most
    return [tests for tests in found if tests]


def _ordered(secs: dict[str, float]) -> list[str]:
    """Orders tests by their seconds; files stay whole, the quickest first."""
    of_files = collections.Counter[str]()
    for test, of_test in secs.items():
        of_files[test.partition("::")[0]] += of_test  # type: ignore[assignment]
    files = {file: number for number, (file, _) in enumerate(of_files.most_common()[::-1])}
    return sorted(secs, key=lambda test: (files[test.partition("::")[0]], secs[test]))


def table(
    faults: Sequence[Fault], tiers: Sequence[str], found: dict[str, dict[str, Noticed]]
) -> list[str]:
    """Writes a Markdown table of the faults, and the totals of the tiers."""
    rows = ["| fault | noticed by | test | s |", "|---|---|---|---|"]
    for fault in faults:
        of_tiers = found[fault.name]
        first = next((t for t in tiers if t in of_tiers and of_tiers[t].outcome == "noticed"), None)
        last = next(reversed(of_tiers.values()), None)
        if first is not None:
            one = of_tiers[first]
            rows.append(f"| {fault.name} | {first} | `{one.test}` | {one.secs:.0f} |")
        elif last is not None:
            outcome = "missed" if _has(of_tiers, "missed") else last.outcome
            secs = sum(one.secs for one in of_tiers.values())
            rows.append(f"| {fault.name} | {outcome} | {fault.why} | {secs:.0f} |")
    rows.append("")
    for count in range(1, len(tiers) + 1):
        added = tiers[:count]
        noticed = sum(
            any(t in of and of[t].outcome == "noticed" for t in added) for of in found.values()
        )
        rows.append(f"{' and '.join(NAMES[t] for t in added)}: {noticed} of {len(faults)}")
    return rows


def _has(of_tiers: dict[str, Noticed], outcome: str) -> bool:
    return any(one.outcome == outcome for one in of_tiers.values())


def _line(fault: Fault, one: Noticed) -> str:
    doubtful = f"; doubtful: {', '.join(one.doubtful)}" if one.doubtful else ""
    return f"{fault.name} {one.outcome} {one.test} ({one.secs:.0f} s){doubtful}"


def _state(root: Path) -> str:
    """Returns a digest of what is measured: the package and its tests."""
    digest = hashlib.sha256()
    for name in tracked(root):
        if name.startswith(_MEASURED) and (root / name).is_file():
            digest.update(f"{name}\0".encode() + (root / name).read_bytes())
    return digest.hexdigest()[:16]


def _expression(text: str) -> tuple[str, str]:
    tier, sign, expression = text.partition("=")
    if not sign or tier not in EXPRESSIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is not TIER=EXPRESSION of a known tier")
    return tier, expression


def _tiers(text: str) -> list[str]:
    for tier in text.split(","):
        if tier not in EXPRESSIONS:
            raise argparse.ArgumentTypeError(f"{tier!r} is not one of {', '.join(EXPRESSIONS)}")
    return text.split(",")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiers", type=_tiers, default=[*EXPRESSIONS], help="the default: all")
    parser.add_argument("--every-tier", action="store_true", help="also what was noticed before")
    parser.add_argument("--only", nargs="+", default=[""], metavar="PART", help="parts of names")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="default: all tests")
    parser.add_argument("--json", type=Path, help="a file that keeps the results")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a fault and a tier")
    parser.add_argument("--processes", default="0", help="pytest's -n with a fault")
    parser.add_argument("--reach-processes", default="auto", help="pytest's -n with marks")
    parser.add_argument("--root", type=Path, default=ROOT, help="another clone to measure")
    parser.add_argument(
        "--expression", type=_expression, action="append", default=[], metavar="TIER=EXPRESSION"
    )
    parser.add_argument("--list", action="store_true", help="only list the faults")
    arguments = parser.parse_args()
    arguments.expression = {**EXPRESSIONS, **dict(arguments.expression)}
    arguments.root = arguments.root.resolve()
    return arguments


if __name__ == "__main__":
    main()
