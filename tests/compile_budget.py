"""The number of programs that each file of tests may compile.

Most of the tests' time is XLA's compiling for the CPU. A program that is compiled for one case
alone often comes from a single operation on a shape that no other case has. So each file has a
budget: `DEFAULT_PROGRAMS`, or its line in `tests/compile_budgets.json`. The test that exceeds it
fails. Use NumPy for inputs and expected values, and the shapes of the file's other cases. If the
file really needs more programs, give it a larger budget there.

`python -m pytest --measure` keeps no budget, and prints the programs of the files that exceed
theirs.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import pytest

DEFAULT_PROGRAMS = 60
BUDGETS = Path(__file__).with_name("compile_budgets.json")
PROGRAMS = "programs"
"""Name of the property of a test's report with the programs that its file has compiled so far."""
_COMPILED = "/jax/core/compile/backend_compile_duration"


class CompileBudget:
    """Counts programs by file, and fails a test that exceeds its file's budget.

    A file's nightly tests have no budget, since they are there for further shapes. Programs that an
    earlier file of the same process has compiled count there.

    Args:
      budgets: budgets of the files that need more than `DEFAULT_PROGRAMS`; None for no limits.
    """

    def __init__(self, budgets: Mapping[str, int] | None) -> None:
        self._budgets = budgets
        self._compiled: collections.Counter[str] = collections.Counter()
        self._file = ""
        jax.monitoring.register_event_duration_secs_listener(self._count)

    def _count(self, event: str, secs: float, **_: object) -> None:
        if event == _COMPILED:
            self._compiled[self._file] += 1

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begins to count for a test's file."""
        self._file = nodeid.partition("::")[0]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Fails a test after which its file's budget is exceeded."""
        before = self._compiled[self._file]
        yield
        after = self._compiled[self._file]
        if item.get_closest_marker("nightly"):
            self._compiled[self._file] = before
            return
        item.user_properties.append((PROGRAMS, after))
        if self._budgets is None:
            return
        budget = self._budgets.get(self._file, DEFAULT_PROGRAMS)
        if budget < after != before:
            pytest.fail(
                f"{self._file} has compiled {after} programs, {after - before} of them in this"
                f" test. Its budget is {budget}: see tests/compile_budget.py.",
                pytrace=False,
            )


def read_budgets() -> dict[str, int]:
    """Reads the budgets of files that need more programs than others."""
    budgets: dict[str, int] = json.loads(BUDGETS.read_text())
    return budgets
