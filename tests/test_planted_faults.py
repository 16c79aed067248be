"""The table of planted faults, and the copies that they are planted in."""

import ast
import importlib
from pathlib import Path

import pytest

from tests.runs import forks

ROOT = Path(__file__).resolve().parents[1]
_BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def benchmark(benchmarks):
    return benchmarks("planted_faults")


@pytest.fixture
def copies(benchmarks):
    return benchmarks("planted_fault_copies")


def test_each_fault_can_be_planted_and_its_function_marked(benchmark, copies):
    assert len({fault.name for fault in benchmark.FAULTS}) == len(benchmark.FAULTS) == 40
    for fault in benchmark.FAULTS:
        before = (ROOT / fault.path).read_text()
        after = copies.planted(before, fault)
        assert after != before
        compile(after, fault.path, "exec")
        compile(copies.marked(before, fault), fault.path, "exec")


def test_a_text_that_is_gone_or_doubled_is_refused(benchmark, copies):
    fault = benchmark.FAULTS[0]._replace(old="a = 1", new="a = 2")
    for text in ("", "a = 1\na = 1\n"):
        with pytest.raises(ValueError, match="not once"):
            copies.planted(text, fault)
    with pytest.raises(ValueError, match="outside of a function"):
        copies.marked("a = 1\n", fault)


def test_a_mark_is_the_first_statement_of_the_innermost_function(benchmark, copies):
    text = 'def f():\n    """Is f."""\n\n    def g(x):\n        """Is g."""\n        a = 1\n'
    marked = copies.marked(text, benchmark.FAULTS[0]._replace(name="this", old="a = 1"))
    (outer,) = ast.parse(marked).body
    inner = outer.body[1]
    assert len(outer.body) == 2
    assert ast.unparse(inner.body[2]) == "planted_fault_marks.note('this')"


def test_a_mark_names_the_current_test_once(benchmark, copies, tmp_path, monkeypatch):
    marks = importlib.import_module("planted_fault_marks")
    fault = benchmark.FAULTS[0]
    marks.note(fault.name)  # Without a folder nothing is written.
    monkeypatch.setenv(marks.FOLDER, str(tmp_path))
    monkeypatch.setenv(marks.TEST, "tests/test_a.py::test_b[c (d)] (call)")
    marks.note(fault.name)
    marks.note(fault.name)
    assert (tmp_path / fault.name).read_text().count("\n") == 1
    assert copies.reached(tmp_path, fault) == ["tests/test_a.py::test_b[c (d)]"]
    monkeypatch.setenv(marks.FOLDER, str(tmp_path / "missing"))
    monkeypatch.setenv(marks.TEST, "tests/test_a.py::test_e (call)")
    marks.note(fault.name)


def test_tests_of_a_fault_s_folder_run_first_then_quick_ones_then_those_beside_them(benchmark):
    secs = {"a::slow": 9.0, "a::quick": 0.5, "b::quick": 0.1, "b::beside": 0.1, "c::other": 0.1}
    secs["tests/learning/a::near"] = 2.0
    fault = next(one for one in benchmark.FAULTS if one.path == "rl_sync/learning/credit.py")
    direct = ["a::slow", "a::quick", "b::quick", "tests/learning/a::near"]
    rounds = benchmark.rounds_of(benchmark.Reach(secs, {fault.name: direct}), fault)
    near = ["tests/learning/a::near"]
    assert rounds == [near, ["b::quick", "a::quick"], ["a::slow"], ["b::beside"]]


def test_the_totals_add_up_the_tiers(benchmark):
    one, two, three = faults = benchmark.FAULTS[:3]
    noticed, missed = (benchmark.Noticed(of, "a::b", 2.0, []) for of in ("noticed", "missed"))
    found = {
        one.name: {"readme": noticed},
        two.name: {"readme": missed, "gate": noticed},
        three.name: {"readme": missed, "gate": missed},
    }
    lines = benchmark.table(faults, ["readme", "gate"], found)
    assert lines[2] == f"| {one.name} | readme | `a::b` | 2 |"
    assert lines[4] == f"| {three.name} | missed | {three.why} | 4 |"
    assert lines[-2:] == ["README's tests: 1 of 3", "README's tests and the gate: 2 of 3"]


def test_results_of_another_state_or_torn_lines_are_ignored(benchmark, tmp_path):
    path = tmp_path / "results.jsonl"
    first = benchmark.Results(path, "before")
    first.put(benchmark.Noticed("missed", "", 1.0, []), "gate", 1)
    with path.open("a") as file:
        file.write('{"state": "bef')
    second = benchmark.Results(path, "before")
    second.put(benchmark.Noticed("missed", "", 2.0, []), "gate", 3)
    assert benchmark.Results(path, "before").get("gate", 1) == ["missed", "", 1.0, []]
    assert benchmark.Results(path, "before").get("gate", 3) == ["missed", "", 2.0, []]
    assert benchmark.Results(path, "before").get("gate", 2) is None
    assert benchmark.Results(path, "after").get("gate", 1) is None


def test_a_fork_of_an_earlier_test_s_server_names_the_present_test(benchmark, monkeypatch):
    plugin, given = importlib.import_module("planted_fault_plugin"), []
    monkeypatch.setattr(forks.Fork, "__init__", lambda self, *of: given.append(of))
    monkeypatch.setenv(plugin.FOLDER, "some/folder")
    monkeypatch.setenv(plugin.TEST, "tests/test_a.py::second (call)")
    plugin.pytest_collection_finish()
    forks.Fork("server", ["launcher"], 1, {plugin.TEST: "tests/test_a.py::first (call)", "A": "b"})
    environment = {plugin.TEST: "tests/test_a.py::second (call)", "A": "b"}
    assert given == [("server", ["launcher"], 1, environment)]
