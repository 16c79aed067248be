"""Examinations of programs by tests in another sandbox."""

import time

import pytest

from rl_sync.sandbox import examination
from rl_sync.sandbox.examination import START, ProgramTestOutcome, ProgramTests, examine
from rl_sync.sandbox.program_limits import ProgramLimits
from rl_sync.sandbox.sandbox import Sandbox
from rl_sync.sandbox.sandbox_choice import choose

PROGRAM = """
import os, time
def add(a, b=0): return a + b
def grow(items): items.append(len(items)); return None
def die(): os._exit(0)
def wait(): time.sleep(60)
def pairs(n): return ((i, {i}) for i in range(n))
def fail(kind): raise kind
def picky(n):
    if n < 0: raise ValueError(f"{n} is negative")
    return n
class Own(Exception): pass
def own(): raise Own("mine")
async def later(x): return x
class Stack:
    def __init__(self, items=()): self.items, self.size = list(items), len(items)
    def push(self, x): self.items.append(x); self.size += 1
    def pop(self): return self.items.pop()
class Solution:
    def twice(self, n): return 2 * n
"""


@pytest.fixture(scope="module")
def sandbox():
    return Sandbox(choose(), ProgramLimits(wall_secs=3.0))


def outcomes(sandbox, *tests, program=PROGRAM, secs=20.0, **fields):
    tests = [{"text": test} if isinstance(test, str) else test for test in tests]
    wanted = ProgramTests(tests, **fields)
    return list(examine(sandbox, program, wanted, time.monotonic() + secs))


def passes(sandbox, test, **fields):
    (verdict,) = outcomes(sandbox, test, **fields)
    return verdict.outcome == "passed" or verdict


@pytest.mark.parametrize(
    "test",
    [
        "assert add(1, b=2) == 3",
        "items = [5]; assert grow(items) is None; assert items == [5, 1]",
        "assert list(pairs(2)) == [(0, {0}), (1, {1})]",
        "assert math.isclose(add(0.1, 0.2), 0.3)",
        "from solution import add as plus\nassert plus(1) == 1",
        "assert sorted([add(2), add(1)]) == [1, 2]",
        "def test_one():\n    assert add(1) == 1\ndef test_two():\n    assert add(2) == 2",
        "try: picky(-1)\nexcept ValueError as e: assert str(e) == '-1 is negative'\nelse: 1 / 0",
        "stack = Stack([1]); stack.push(2); assert stack.pop() == 2 and stack.size == 2",
        "assert later(3) == 3",
    ],
)
def test_a_test_that_holds_passes(sandbox, test):
    names = ["add", "grow", "pairs", "picky", "later"]
    assert passes(sandbox, test, functions=names, classes=["Stack"]) is True


def test_check_gets_the_function_that_the_entry_point_names(sandbox):
    check = "def check(candidate):\n    assert candidate(2) == {}\n    assert candidate(n=0) == 0"
    assert passes(sandbox, check.format(4), entry_point="Solution().twice") is True
    assert passes(sandbox, check.format(5), entry_point="Solution().twice").why == (
        "Solution().twice(2) returned 4; an assertion does not hold"
    )


def test_a_setup_defines_helpers_that_the_program_cannot_change(sandbox):
    program = PROGRAM + "\ndef near(a, b): return True"
    fields = {"setup": "def near(a, b): return abs(a - b) < 1\ndef add(a, b): pass"}
    fields |= {"entry_point": "add", "program": program}
    assert passes(sandbox, "assert near(add(1, 1), 2.5)", **fields) is True
    assert passes(sandbox, "assert near(add(1, 1), 3.5)", **fields).outcome == "failed"


def test_the_one_name_that_nothing_defines_is_a_function_of_the_program(sandbox):
    assert passes(sandbox, "assert add(1) == 1") is True
    (verdict,) = outcomes(sandbox, "assert add(1) == picky(1)")
    assert (verdict.test, verdict.outcome) == (START, "broken")
    assert "`functions`" in verdict.why


def test_a_program_cannot_replace_what_python_defines(sandbox):
    program = "def abs(x): return 0\ndef f(x): return 9"
    verdict = passes(sandbox, "assert abs(f(1) - 5) < 1", program=program)
    assert verdict.outcome == "failed"


def test_calls_compare_with_values_from_json(sandbox):
    good = {"call": "pairs", "args": [0], "expected": []}
    near = {"call": "add", "args": [0.1, 0.2], "expected": 0.3, "tolerance": 1e-6}
    wrong = {"call": "add", "kwargs": {"a": 1}, "expected": 2}
    verdicts = outcomes(sandbox, good, near, wrong)
    assert [v.outcome for v in verdicts] == ["passed", "passed", "failed"]
    assert verdicts[2].why == "add(a=1) returned 1; expected 2"


def test_a_test_that_stops_the_program_fails_alone(sandbox):
    tests = ["assert add(1) == 1", "die()", "assert add(2) == 2", "wait()", "assert add(3) == 3"]
    verdicts = outcomes(sandbox, *tests, functions=["add", "die", "wait"])
    assert [v.test for v in verdicts] == [0, 1, 2, 3, 4]
    assert [v.outcome for v in verdicts] == ["passed", "failed", "passed", "failed", "passed"]
    assert "die() did not return" in verdicts[1].why
    assert "time limit of 3 s" in verdicts[3].why


@pytest.mark.gate
def test_the_deadline_ends_an_examination(sandbox):
    verdicts = outcomes(sandbox, "wait()", "assert wait() == 1", "wait()", secs=4.5)
    assert len(verdicts) < 3


def test_exceptions_of_the_program_have_their_names(sandbox):
    verdict = passes(sandbox, "own()")
    assert verdict.why == "own() raised Own: mine"


def test_a_program_that_does_not_start_fails_with_the_reason(sandbox):
    (verdict,) = outcomes(sandbox, "assert f(1)", program="def f(:")
    assert (verdict.test, verdict.outcome) == (START, "failed")
    assert verdict.why.startswith("SyntaxError: ")


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("assert add(lambda: 1)", "function, which no pipe can carry"),
        ("stack = Stack(); stack.size = 3", "cannot set size"),
        ("assert add(1", "SyntaxError"),
    ],
)
def test_a_test_that_no_proxy_can_do_is_broken(sandbox, test, why):
    (verdict,) = outcomes(sandbox, test, functions=["add"], classes=["Stack"])
    assert verdict.outcome == "broken"
    assert why in verdict.why


def test_a_value_that_grew_too_deep_is_the_programs_fault(sandbox):
    program = "def f(x):\n    for _ in range(99): x = [x]\n    return x"
    verdict = passes(sandbox, "f([[f(1)]])", program=program)
    assert verdict.outcome == "failed"


@pytest.mark.parametrize(
    "line", [b"wasm trap: out of memory\n", b"\n", b"[1]\n", b"\xff\n", b"7\n"]
)
def test_the_last_words_of_a_sandbox_that_gave_up_are_no_verdict(line):
    """A large result can end the examiner's sandbox, where the program is to blame."""
    assert examination._verdict(line) is None
    assert examination._verdict(b'[0, "passed", ""]\n') == ProgramTestOutcome(0, "passed", "")
