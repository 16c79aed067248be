"""A plugin of pytest: reports tests, runs named ones in an order, and helps marks to name tests.

`planted_faults.py` copies it into copies of the repository and loads it there.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

REPORTS = "PLANTED_FAULTS_REPORTS"
"""The environment variable that names the file of reports, a line of JSON each."""
ORDER = "PLANTED_FAULTS_ORDER"
"""The environment variable that names a file with the ids of the tests to run, in order."""
FOLDER = "PLANTED_FAULTS_REACH"
TEST = "PYTEST_CURRENT_TEST"

_file: list[Path] = []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves only the named tests, in their order."""
    if not (path := os.environ.get(ORDER)):
        return
    place = {test: number for number, test in enumerate(json.loads(Path(path).read_text()))}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in place])
    chosen = [item for item in items if item.nodeid in place]
    items[:] = sorted(chosen, key=lambda item: place[item.nodeid])


def pytest_collection_finish() -> None:
    """Lets forks of a server that an earlier test has started name the present test."""
    if not os.environ.get(FOLDER):
        return
    try:
        fork: Any = importlib.import_module("tests.runs.forks").Fork
    except ImportError:
        return
    begin = fork.__init__

    def begin_with_test(self: Any, server: Any, words: Any, output: Any, environment: Any) -> None:
        present = {TEST: os.environ[TEST]} if TEST in os.environ else {}
        begin(self, server, words, output, {**environment, **present})

    fork.__init__ = begin_with_test


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forgets at each new file what JAX has traced: only what is traced again reaches marks."""
    if not os.environ.get(FOLDER) or _file == [item.path]:
        return
    _file[:] = [item.path]
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Writes the outcome of a part of a test."""
    _write(report.nodeid, report.when or "", report.outcome, report.duration)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Writes what cannot be collected."""
    if report.failed:
        _write(report.nodeid, "collect", "failed", 0.0)


def _write(test: str, when: str, outcome: str, secs: float) -> None:
    if (path := os.environ.get(REPORTS)) and "PYTEST_XDIST_WORKER" not in os.environ:
        line = {"test": test, "when": when, "outcome": outcome, "secs": round(secs, 3)}
        with open(path, "a") as file:
            file.write(json.dumps(line) + "\n")
