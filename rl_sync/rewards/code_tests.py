"""Tests of programs in rows of data.

`docs/code.md` has the schema and examples.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rl_sync.rewards.judgement import Row
from rl_sync.sandbox.examination import ProgramTests

_CALL = {"call", "args", "kwargs", "expected"}
_TESTS = ("tests", "test_list", "test")
"""Fields of a row's tests; the first that is not empty counts. The last two are MBPP's and
HumanEval's."""
_APPS = "input_output"


@dataclasses.dataclass(frozen=True)
class InputOutput:
    """A test on standard input: the program must print the output when it reads the input."""

    input: str
    output: str


@dataclasses.dataclass(frozen=True)
class CodeTests:
    """The tests of a row, either cases or an examination.

    Attributes:
      cases: tests on standard input.
      examination: tests that call functions; None if there are none.
    """

    cases: Sequence[InputOutput]
    examination: ProgramTests | None

    def __len__(self) -> int:
        return len(self.cases) + (len(self.examination.tests) if self.examination else 0)


def code_tests(row: Row, tolerance: float) -> CodeTests:
    """Reads the tests of a row.

    Args:
      row: the row. Its fields `tests` (or `test_list`, `test`, `input_output`), `entry_point`,
        `functions`, `classes`, `in_place`, `setup` (or `test_setup_code`) and `continues_prompt`
        matter here.
      tolerance: the relative and absolute tolerance for comparing floats.

    Raises:
      ValueError: the tests are missing or malformed.
    """
    tests: Any = next((row[name] for name in _TESTS if row.get(name)), None)
    if tests is None and row.get(_APPS):
        return _apps_tests(row[_APPS], tolerance)
    if isinstance(tests, str):
        # A typed column cannot mix types, so such tables hold tests as JSON text.
        tests = json.loads(tests) if tests.lstrip().startswith("[") else [tests]
    if not isinstance(tests, Sequence) or not tests:
        raise ValueError(
            "A row for the code reward needs `tests`, a list of tests or a text of asserts, but "
            f"has {_short(tests)}. docs/code.md shows the kinds of tests."
        )
    if all(isinstance(test, Mapping) and set(test) == {"input", "output"} for test in tests):
        cases = [InputOutput(_text(test, "input"), _text(test, "output")) for test in tests]
        return CodeTests(cases, None)
    entry_point = str(row.get("entry_point") or "")
    items = [_test(test, entry_point, tolerance) for test in tests]
    setup = str(row.get("setup") or row.get("test_setup_code") or "")
    if row.get("continues_prompt") and _compiles(prompt := str(row["prompt"])):
        # Tests use the prompt's own helpers, whatever the program makes of them.
        setup = f"{prompt}\n{setup}"
    return CodeTests(
        [],
        ProgramTests(
            items,
            setup=setup,
            entry_point=entry_point,
            functions=_names(row, "functions"),
            classes=_names(row, "classes"),
            in_place=_names(row, "in_place"),
        ),
    )


def _apps_tests(value: Any, tolerance: float) -> CodeTests:
    """Reads the tests of APPS: `{"inputs": […], "outputs": […], "fn_name": …}`, or its JSON.

    Without `fn_name` they use standard input, and a list of lines may stand for a text. With it,
    each input is the list of arguments, or a text with the JSON of an argument a line, and each
    output is the result, or a list with only the result (Hendrycks et al. 2021,
    https://arxiv.org/abs/2105.09938).

    Raises:
      ValueError: the value has another form.
    """
    found = _parsed(value) if isinstance(value, str) else value
    inputs, outputs = (
        (found.get("inputs"), found.get("outputs")) if isinstance(found, Mapping) else (None, None)
    )
    if (
        not isinstance(inputs, list)
        or not isinstance(outputs, list)
        or not 0 < len(inputs) == len(outputs)
    ):
        raise ValueError(
            f"The field `{_APPS}` of a row for the code reward is an object with as many `inputs`"
            " as `outputs`, at least one, and with `fn_name` if a function is called, or its JSON,"
            f" but is {_short(value)}."
        )
    pairs = zip(inputs, outputs, strict=True)
    name = found.get("fn_name")
    if not name:
        return CodeTests(
            [InputOutput(_lines(given), _lines(right)) for given, right in pairs], None
        )
    # Solutions are functions, or methods of a class as on LeetCode.
    call = f"(Solution().{name} if 'Solution' in globals() else {name})"
    calls = [_apps_call(call, *pair, tolerance) for pair in pairs]
    return CodeTests([], ProgramTests(calls))


def _apps_call(call: str, given: object, right: object, tolerance: float) -> dict[str, Any]:
    if isinstance(given, str):
        given = [_parsed(line) for line in given.splitlines()]
        right = _parsed(right) if isinstance(right, str) else right
    if not isinstance(given, list):
        raise ValueError(
            f"The `inputs` of a row with `fn_name` are lists of arguments, not {_short(given)}."
        )
    also = right[:1] if isinstance(right, list) else []
    return {"call": call, "args": given, "expected": right, "also": also, "tolerance": tolerance}


def _lines(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"A test of the field `{_APPS}` is not JSON ({error}): {_short(text)}."
        ) from error


def _test(test: object, entry_point: str, tolerance: float) -> dict[str, Any]:
    if isinstance(test, str):
        if "check(candidate)" in test.replace(" ", "") and not entry_point:
            raise ValueError(
                "A test that defines `check(candidate)` needs the row's field `entry_point`, the "
                f"name of the function to check. The test begins {_short(test)}."
            )
        return {"text": test}
    if isinstance(test, Mapping) and {"call", "expected"} <= set(test) <= _CALL:
        return {**test, "tolerance": tolerance}
    raise ValueError(
        "A test is a text of asserts, or has the fields `call`, `expected` and perhaps `args` and "
        "`kwargs`, or the fields `input` and `output`. A row may mix the first two kinds, but "
        f"not the third with them. This test is {_short(test)}."
    )


def _names(row: Row, field: str) -> list[str]:
    names = row.get(field) or []
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"The field `{field}` of a row is a list of names, not {_short(names)}.")
    return list(names)


def _text(test: Mapping[str, Any], field: str) -> str:
    if not isinstance(value := test[field], str):
        raise ValueError(f"The `{field}` of a test is a text, not {_short(value)}.")
    return value


def _compiles(text: str) -> bool:
    """Says whether a prompt is Python by itself. It comes from the data, so it can be trusted."""
    try:
        compile(text, "prompt", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}…"
