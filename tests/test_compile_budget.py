"""A test that compiles more programs than its file may fails; a nightly one does not."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from tests import compile_budget, measured_secs
from tests.compile_budget import DEFAULT_PROGRAMS, CompileBudget

ROOT = Path(__file__).resolve().parents[1]
FILE = "tests/test_some.py"


def run(budget: CompileBudget, programs: int, nightly: bool = False) -> None:
    """Runs a test that compiles programs, as pytest would."""
    item = mock.Mock(user_properties=[])
    item.get_closest_marker.return_value = pytest.mark.nightly if nightly else None
    budget.pytest_runtest_logstart(f"{FILE}::test_it")
    call = budget.pytest_runtest_call(item)
    next(call)
    for _ in range(programs):
        budget._count(compile_budget._COMPILED, 0.1)
    with pytest.raises(StopIteration):
        call.send(None)


@pytest.mark.parametrize(("budgets", "most"), [({}, DEFAULT_PROGRAMS), ({FILE: 3}, 3)])
def test_the_test_that_exceeds_its_files_budget_fails(budgets, most):
    budget = CompileBudget(budgets)
    run(budget, most - 1)
    run(budget, 1)
    with pytest.raises(pytest.fail.Exception, match=f"{most + 1} programs, 1 of them in this"):
        run(budget, 1)
    run(budget, 0)


def test_nightly_tests_and_measurements_have_no_budget():
    run(CompileBudget({FILE: 3}), 10, nightly=True)
    run(CompileBudget(None), 1000)


def test_every_line_of_both_tables_names_a_file():
    for path in (*compile_budget.read_budgets(), *measured_secs.read("readme")):
        assert (ROOT / path).is_file(), path
