"""Functions of the user as tools in a real sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from rl_sync.environments.interface import ToolCall
from rl_sync.environments.sandboxed import sandboxed
from rl_sync.environments.tools import Tool, Toolbox
from rl_sync.sandbox.interpreter import Interpreter

Number = int
LIMIT = 3


def primes(below: Number, *, more: dict[str, Any] | None = None) -> list[Number]:
    """Lists prime numbers.

    Args:
        below: The bound.
        more: Is returned.
    """
    import math

    class Primes(list):
        named: Number = 1

        @property
        def plain(self):
            return list(self)

    found: Number | list = Primes(
        n for n in range(2, below) if all(n % k for k in range(2, math.isqrt(n) + 1))
    )
    return found.plain if more is None else [found.plain, more]


def acts(kind: str) -> Any:
    """Does something else than to return a plain value.

    Args:
        kind: What it does.
    """
    import contextlib
    import os

    if kind == "recurse":
        return acts("raise")
    if kind == "raise":
        raise ValueError("not this one")
    if kind == "loop":
        while True:
            pass
    if kind == "exit":
        os._exit(4)
    if kind == "garbage":
        os.write(1, b"x")
        for descriptor in range(3, 10):
            with contextlib.suppress(OSError):
                os.write(descriptor, b"\0\0\0\2[]" * 2)
        os._exit(0)
    if kind == "write":
        os.mkdir("/usr/x")
        return "written"
    return os


def answer(function, interpreter=None, **arguments):
    """Returns the text of a call's answer."""
    tool = sandboxed(function, interpreter)
    return Toolbox([tool]).answer(ToolCall(tool.name, arguments)).content


def test_arguments_go_in_and_the_result_comes_out():
    assert answer(primes, below=12) == "[2, 3, 5, 7, 11]"
    more = {"é": [1.5, None, True]}
    assert answer(primes, below=4, more=more) == '[[2, 3], {"é": [1.5, null, true]}]'


def test_the_schema_is_that_of_the_function():
    assert sandboxed(primes).schema == Tool.of(primes).schema
    assert "'below' must be of type integer" in answer(primes, below="5")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("raise", "Error: ValueError: not this one"),
        ("recurse", "Error: ValueError: not this one"),
        ("loop", "Error: it took longer than 0.5 s"),
        ("exit", "Error: exit code 4"),
        ("garbage", "Error: the result cannot be read: "),
        ("write", "Error: "),
        ("module", "Error: its result is a value of type builtins.module, which is no plain"),
    ],
)
def test_other_ends_of_a_call_are_errors(kind, text):
    seconds = 0.5 if kind == "loop" else 10.0
    assert answer(acts, Interpreter(seconds=seconds), kind=kind).startswith(text)


def test_functions_that_cannot_run_on_their_own_are_refused():
    known = 5

    def closure(x: int) -> int:
        """Adds.

        Args:
            x: A number.
        """
        return x + known

    def limited(x: int, most: int = LIMIT) -> int:
        """Adds.

        Args:
            x: A number.
            most: The most.
        """
        return min(x, most, Number(LIMIT))

    class Box:
        def method(self) -> int:
            """Returns a number."""
            return 1

    for function, message in (
        (closure, "closure cannot run in a sandbox: make it a plain function"),
        (Box().method, "method cannot run in a sandbox: make it a plain function"),
        (limited, "limited cannot run in a sandbox: it uses LIMIT, Number of its module"),
    ):
        with pytest.raises(ValueError, match=message):
            sandboxed(function)
    namespace: dict = {}
    exec('def told() -> int:\n    """Returns."""\n    return 1', namespace)
    with pytest.raises(ValueError, match="told cannot run in a sandbox: its text is not found"):
        sandboxed(namespace["told"])
