"""Programs that play with the control flow, the variables and the objects of their tests."""

import time

import pytest

from rl_sync.sandbox.examination import ProgramTests, examine
from rl_sync.sandbox.program_limits import ProgramLimits
from rl_sync.sandbox.sandbox import Sandbox
from rl_sync.sandbox.sandbox_choice import choose


@pytest.fixture(scope="module")
def sandbox():
    return Sandbox(choose(), ProgramLimits(wall_secs=5.0))


def verdicts(sandbox, program, *tests, **fields):
    tests = [{"text": test} if isinstance(test, str) else test for test in tests]
    examination = ProgramTests(tests, **fields)
    return list(examine(sandbox, program, examination, time.monotonic() + 30))


def outcome(sandbox, program, *tests, **fields):
    return [verdict.outcome for verdict in verdicts(sandbox, program, *tests, **fields)]


RAISES = "def f(*a): raise {}"
LEAVES = "import os\ndef f(*a): os._exit(0)"
OBJECT = "def f(*a): return f"
SWALLOWED = [
    "assert all(map(lambda x: f(x) == x * 7, [1, 2, 3]))",
    "assert not any(map(lambda x: f(x) != x * 7, [1, 2, 3]))",
    "for got, want in zip(map(f, [1, 2]), [7, 14]): assert got == want",
    "for got, want in zip([7, 14], map(f, [1, 2]), strict=False): assert got == want",
    "for x in map(f, [1, 2]): assert x in (7, 14)",
    "assert [x for x in filter(f, [1, 2])] in ([], [1, 2])",
    "assert next(map(f, [1]), 7) == 7",
    "import itertools\nassert sum(itertools.starmap(f, [(1,)])) in (0, 7)",
    "assert max(map(f, [1, 2]), default=14) == 14",
    "for x in iter(lambda: f(1), 7): assert False",
]


@pytest.mark.parametrize("test", SWALLOWED)
@pytest.mark.parametrize(
    "kind", ["StopIteration", "StopIteration(7)", "GeneratorExit", "SystemExit"]
)
def test_the_end_of_an_iteration_is_no_way_past_a_test(sandbox, test, kind):
    (verdict,) = verdicts(sandbox, RAISES.format(kind), test, functions=["f"])
    assert verdict.outcome == "failed"
    assert kind.partition("(")[0] in verdict.why


def test_the_end_of_an_asynchronous_iteration_is_none_either(sandbox):
    test = """
import asyncio
class Results:
    def __init__(self): self.left = [1, 2]
    def __aiter__(self): return self
    async def __anext__(self):
        if not self.left: raise StopAsyncIteration
        return f(self.left.pop())
async def run():
    async for got in Results(): assert got == 7
asyncio.run(run())
"""
    assert outcome(sandbox, "def f(x): return 7", test, functions=["f"]) == ["passed"]
    program = RAISES.format("StopAsyncIteration")
    assert outcome(sandbox, program, test, functions=["f"]) == ["failed"]


@pytest.mark.parametrize(
    "test",
    [
        "try: f()\nexcept StopIteration: pass\nelse: assert False",
        "try: f()\nexcept (KeyError, StopIteration) as e: assert str(e) == 'done'",
        "import contextlib\nwith contextlib.suppress(StopIteration):\n    f()\n    assert False",
        "try: f()\nexcept Exception as e: assert type(e).__name__ == 'StopIteration'",
        "def end():\n    raise StopIteration\ntry: end(f)\nexcept TypeError: pass\n"
        "try: end()\nexcept StopIteration: pass\ntry: f()\nexcept StopIteration: pass",
    ],
)
def test_a_test_may_expect_these_exceptions_by_name(sandbox, test):
    assert outcome(sandbox, RAISES.format("StopIteration('done')"), test, functions=["f"]) == [
        "passed"
    ]
    assert outcome(sandbox, RAISES.format("StopAsyncIteration"), test, functions=["f"]) == [
        "failed"
    ]


@pytest.mark.parametrize(
    "test",
    [
        "try: f(-1)\nexcept Exception: pass\nelse: assert False",
        "try: f(-1)\nexcept: pass\nelse: assert False",
        "import contextlib\nwith contextlib.suppress(Exception):\n    f(-1)\n    assert False",
        "failed = False\ntry: f(-1)\nexcept BaseException: failed = True\nassert failed",
    ],
)
@pytest.mark.parametrize("program", [LEAVES, OBJECT, "def f(x): return {'a': [lambda: 1]}"])
def test_what_is_no_answer_is_not_the_exception_that_a_test_wants(sandbox, test, program):
    assert outcome(sandbox, RAISES.format("ValueError"), test, functions=["f"]) == ["passed"]
    assert outcome(sandbox, program, test, functions=["f"]) == ["failed"]


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(x): x.clear(); return []", "xs = [3, 1]; assert f(xs) == sorted(xs)"),
        ("def f(x): x.clear(); return []", "xs = [3, 1]; got = f(xs); assert got == sorted(xs)"),
        ("def f(x): x.clear(); return 0", "xs = {3, 1}; assert f(xs) == sum(xs)"),
        (
            "def f(x): x.clear(); return {}",
            "d = {1: 2}; assert f(d) == {v: k for k, v in d.items()}",
        ),
        ("def f(x): del x[:]; return b''", "b = bytearray(b'ab'); assert f(b) == bytes(b)[::-1]"),
        ("def f(xs): xs.clear(); return 0", "xs = [3, 1]; assert f(xs=xs) == max(xs, default=0)"),
        ("def f(x, y): y[:] = [0]; return 0", "a, b = [1], [2]; assert f(a, b) == a[0] * b[0]"),
    ],
)
def test_a_program_cannot_change_what_its_result_is_compared_with(sandbox, program, test):
    assert outcome(sandbox, program, test) == ["failed"]


def test_functions_that_return_none_work_in_place(sandbox):
    program = "def f(x, *, y=None):\n    (y or x).sort()"
    tests = [
        "xs = [3, 1]; f(xs); assert xs == [1, 3]",
        "ys = [3, 1]; f([], y=ys); assert ys == [1, 3]",
    ]
    assert outcome(sandbox, program, *tests) == ["passed", "passed"]


def test_functions_that_return_a_value_and_work_in_place_are_listed(sandbox):
    program = """
def f(x):
    x[:] = sorted(set(x))
    return len(x)
class Bag:
    def fill(self, x): x.append(1); return 7
"""
    test = "xs = [3, 1, 3]; k = f(xs); assert xs[:k] == [1, 3]"
    assert outcome(sandbox, program, test) == ["failed"]
    assert outcome(sandbox, program, test, in_place=["f"]) == ["passed"]
    test = "xs = []; assert Bag().fill(xs) == 7 and xs == [1]"
    for name in ("fill", "Bag.fill"):
        fields = {"classes": ["Bag"], "in_place": [name]}
        assert outcome(sandbox, program, test, **fields) == ["passed"]


def test_a_failed_test_leaves_no_changed_arguments_to_the_next(sandbox):
    tests = ["assert f(DATA) == 6", "assert len(DATA) == 3 and f(DATA) == sum(DATA)"]
    program = "def f(x):\n    if x == [1, 2, 3]: x.clear(); return None\n    return 0"
    fields = {"setup": "DATA = [1, 2, 3]"}
    assert outcome(sandbox, program, *tests, **fields) == ["failed", "failed"]


STACK = """
class Stack:
    def __init__(self): self.items = {}
    def size(self): return 1
def total(x): return 0
"""


@pytest.mark.parametrize("items", ["object()", "lambda: 1", "[len]", "iter", "type('T', (), {})()"])
@pytest.mark.parametrize(
    "test",
    [
        "assert total(Stack().items) == 3",
        "assert total([Stack().items]) == 3",
        "assert total(x={'a': (Stack().items,)}) == 3",
        "assert Stack().items",
        "assert Stack().items != [1]",
        "assert not Stack().items == [1]",
        "assert str(Stack().items)",
        "assert f'{Stack().items}'",
        "assert {Stack().items}",
        "for x in Stack().items: assert x == 1",
        "try: list(Stack().items)\nexcept Exception: pass",
    ],
)
def test_a_program_cannot_choose_to_be_unknown_by_an_attribute(sandbox, items, test):
    program = STACK.format(items)
    fields = {"functions": ["total"], "classes": ["Stack"]}
    assert outcome(sandbox, program, test, **fields) == ["failed"]


def test_a_test_that_hands_over_its_own_function_is_still_broken(sandbox):
    assert outcome(sandbox, STACK.format(1), "total(len)", functions=["total"]) == ["broken"]


@pytest.mark.parametrize(
    "test",
    [
        "got = f(3)\nfor a, b in zip(got, got[1:]): assert not a > b",
        "if abs(f([1])[0] - 2.0) > 1e-6: raise AssertionError",
        "assert not f([1])[0] < 5",
    ],
)
@pytest.mark.parametrize(
    "nan", ["float('nan')", "__import__('decimal').Decimal('sNaN')", "1j * (1e999 - 1e999)"]
)
def test_a_number_that_compares_with_nothing_is_no_answer(sandbox, test, nan):
    program = f"def f(x): return [{nan}] * 3"
    (verdict,) = verdicts(sandbox, program, test)
    assert verdict.outcome == "failed"


def test_tests_that_know_nan_get_it(sandbox):
    test = "import math\nassert math.isnan(f(1))"
    assert outcome(sandbox, "def f(x): return float('nan')", test) == ["passed"]


@pytest.mark.parametrize(
    "test",
    [
        "assert 1 == 1",
        "def verify():\n    assert f(1) == 2",
        "class TestF:\n    def test_f(self): f(1)",
    ],
)
def test_tests_that_call_nothing_judge_nothing(sandbox, test):
    (verdict,) = verdicts(sandbox, "def f(x): return 1", test, functions=["f"])
    assert (verdict.outcome, verdict.why) == ("broken", "no test calls anything of the program")


def test_a_program_cannot_make_tests_that_call_nothing(sandbox):
    tests = ["assert f(1) == 1", "import math"]
    assert outcome(sandbox, LEAVES, *tests) == ["failed", "passed"]


CASE = """
import unittest
class TestF(unittest.TestCase):
    def setUp(self): self.want = 2
    def test_value(self): self.assertEqual(f(1), self.want)
    def test_error(self):
        with self.assertRaises(ValueError): f(-1)
"""


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        ("def f(x):\n    if x < 0: raise ValueError\n    return 2", "passed"),
        ("def f(x): return 2", "failed"),
        ("def f(x): raise ValueError", "failed"),
        (LEAVES, "failed"),
        (OBJECT, "failed"),
    ],
)
def test_classes_of_unittest_are_run(sandbox, program, wanted):
    assert outcome(sandbox, program, CASE, functions=["f"]) == [wanted]


@pytest.mark.parametrize("name", ["test_f", "check"])
def test_coroutines_of_tests_are_run(sandbox, name):
    arguments = "candidate" if name == "check" else ""
    test = f"async def {name}({arguments}):\n    assert f(1) == 2"
    fields = {"entry_point": "f"}
    assert outcome(sandbox, "def f(x): return 2", test, **fields) == ["passed"]
    assert outcome(sandbox, "def f(x): return 3", test, **fields) == ["failed"]


def test_a_test_that_lacks_a_module_is_broken_and_a_program_cannot_pretend_that(sandbox):
    test = "import no_such_module_anywhere\nassert f(1) == 1"
    assert outcome(sandbox, "def f(x): return 1", test) == ["broken"]
    program = RAISES.format("ModuleNotFoundError('no_such_module_anywhere')")
    assert outcome(sandbox, program, "assert f(1) == 1") == ["failed"]


@pytest.mark.parametrize(
    "test",
    [
        "assert __import__(f(1)).x == 1",
        "import importlib\nassert importlib.import_module(f(1)).x == 1",
        "def g():\n    try:\n        return __import__(f(1))\n    except ImportError as e:\n"
        "        raise ImportError('no plug-in') from e\nassert g().x == 1",
    ],
)
@pytest.mark.parametrize(
    "program", ["def f(x): return 'no_such_module'", RAISES.format("ImportError")]
)
def test_a_program_cannot_name_the_module_that_a_test_lacks(sandbox, test, program):
    assert outcome(sandbox, program, test, functions=["f"]) == ["failed"]


@pytest.mark.parametrize(
    "test",
    [
        "def g():\n    from no_such_module import h\n    return h\nassert f(1) == g()",
        "if True:\n    assert f(1) == 1\n    import os, no_such_module.part",
        "from os import no_such_name\nassert f(1) == 1",
        "import importlib\nimportlib.import_module('no_such_module')\nassert f(1) == 1",
    ],
)
def test_a_module_that_the_text_of_a_test_names_and_lacks_breaks_it(sandbox, test):
    assert outcome(sandbox, "def f(x): return 1", test, functions=["f"]) == ["broken"]


THREADS = """
import threading
seen = []
def work(x): seen.append(f(x))
threads = [threading.Thread(target=work, args=[x]) for x in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert all(got == [got[0]] * 2000 for got in seen)
"""


@pytest.mark.parametrize("kind", ["SystemExit", "ValueError", "StopIteration", "KeyboardInterrupt"])
def test_an_exception_in_a_thread_of_a_test_fails_it(sandbox, kind):
    (verdict,) = verdicts(sandbox, RAISES.format(kind), THREADS, functions=["f"])
    assert verdict.outcome == "failed"
    assert "a thread of the test ended" in verdict.why


def test_threads_of_a_test_get_their_own_answers(sandbox):
    program = "def f(x): return [x] * 2000"
    test = THREADS + "assert sorted(got[0] for got in seen) == list(range(6))"
    for _ in range(3):
        assert outcome(sandbox, program, test, functions=["f"]) == ["passed"]


def test_a_program_does_not_run_before_its_tests_are_ready(sandbox):
    program = "import os\nfor _ in range(20):\n    if os.fork() == 0:\n        while True: pass\n"
    assert outcome(sandbox, program + "def f(x): return 2", "assert f(1) == 1") == ["failed"]
