"""Seconds that each file's tests took when they were last measured, by tier.

    python -m pytest --measure                 # README's tests; with -m gate or -m nightly those

renews `tests/measured_secs.json`: for each file the seconds of its tests in a tier, `readme`,
`gate`, `nightly` or `aot`. Long files begin first, and the nightly tests are cut into parts of
equal length (`tests/nightly.py`). The figures need to be right within a factor of two.
"""

from __future__ import annotations

import collections
import json
from pathlib import Path

import pytest

from tests.compile_budget import DEFAULT_PROGRAMS, PROGRAMS, read_budgets

PATH = Path(__file__).with_name("measured_secs.json")
README = "readme"
_ROOT = Path(__file__).resolve().parents[1]
_TIERS = ("nightly", "aot", "gate")


def read(tier: str) -> dict[str, float]:
    """Returns the seconds of each file's tests in a tier."""
    known = json.loads(PATH.read_text())
    return {path: secs[tier] for path, secs in known.items() if tier in secs}


class Recorder:
    """Sums the seconds of the tests that a session runs, and writes them at its end."""

    def __init__(self) -> None:
        self._secs: dict[str, collections.Counter[str]] = {}
        self._programs: collections.Counter[str] = collections.Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds a phase of a test."""
        if isinstance(report, pytest.SubtestReport) or "::" not in report.nodeid:
            return  # A part of its test; or the end of a process, which is none.
        tier = next((name for name in _TIERS if name in report.keywords), README)
        of_tier = self._secs.setdefault(tier, collections.Counter())
        path = report.nodeid.partition("::")[0]
        of_tier[path] += report.duration
        compiled = int(dict(report.user_properties).get(PROGRAMS, 0))  # type: ignore[call-overload]
        self._programs[path] = max(self._programs[path], compiled)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the programs of files that exceed their budgets."""
        budgets = read_budgets()
        for path, compiled in self._programs.most_common():
            if compiled > budgets.get(path, DEFAULT_PROGRAMS):
                terminalreporter.write_line(f"{path} compiled {compiled} programs.")

    def pytest_sessionfinish(self) -> None:
        """Replaces the figures of the files that were run; forgets files that are gone."""
        known = json.loads(PATH.read_text())
        for tier, files in self._secs.items():
            for path, took in files.items():
                known.setdefault(path, {})[tier] = round(took, 1)
        kept = {path: secs for path, secs in sorted(known.items()) if (_ROOT / path).exists()}
        PATH.write_text(json.dumps(kept, indent=1) + "\n")
