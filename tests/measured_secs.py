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

PATH = Path(__file__).with_name("measured_secs.json")
README = "readme"
_TIERS = ("nightly", "aot", "gate")


def read(tier: str) -> dict[str, float]:
    """Returns the seconds of each file's tests in a tier."""
    known = json.loads(PATH.read_text())
    return {path: secs[tier] for path, secs in known.items() if tier in secs}


class Recorder:
    """Sums the seconds of the tests that a session runs, and writes them at its end."""

    def __init__(self) -> None:
        self._secs: dict[str, collections.Counter[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds a phase of a test; its subtests are a part of it."""
        if isinstance(report, pytest.SubtestReport):
            return
        tier = next((name for name in _TIERS if name in report.keywords), README)
        of_tier = self._secs.setdefault(tier, collections.Counter())
        of_tier[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Replaces the figures of the tiers that were run."""
        known = {
            path: {tier: took for tier, took in secs.items() if tier not in self._secs}
            for path, secs in json.loads(PATH.read_text()).items()
        }
        for tier, files in self._secs.items():
            for path, took in files.items():
                known.setdefault(path, {})[tier] = round(took, 1)
        kept = {path: secs for path, secs in sorted(known.items()) if secs}
        PATH.write_text(json.dumps(kept, indent=1) + "\n")
