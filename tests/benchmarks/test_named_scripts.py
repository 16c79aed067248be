"""The benchmarks that documents name are all run by a test."""

import re

from tests.benchmarks.cases import CASES, TESTED_ELSEWHERE
from tests.docs.pages import PAGES, ROOT

_SCRIPT = re.compile(r"benchmarks/[\w/]+\.py")


def _tested():
    return {_SCRIPT.search(case.command)[0] for case in CASES}


def test_each_benchmark_that_documents_name_is_run_by_a_test():
    named = {name for page in PAGES for name in _SCRIPT.findall(page.read_text())}
    assert len(named) > 25
    assert not named - _tested() - TESTED_ELSEWHERE.keys(), (
        "a benchmark needs a case in tests/benchmarks/cases.py"
    )


def test_the_table_has_only_scripts_that_exist():
    assert all((ROOT / name).is_file() for name in _tested())
    for name, test in TESTED_ELSEWHERE.items():
        assert name not in _tested()
        assert (ROOT / name).is_file()
        stem = name.rpartition("/")[2].removesuffix(".py")
        assert stem in (ROOT / test).read_text()


def test_each_case_expects_something_of_what_is_printed():
    assert all(case.tables or case.lines for case in CASES)
