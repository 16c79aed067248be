"""The judged program's side of an examination: runs the program, then answers calls.

The first request, often `["start"]`, runs the program's text, and the first answer says how that
went. `["call", expression, arguments, keywords]` calls the function that the expression, such as
`Solution().sort`, names. `["new", ...]` keeps the result here and answers with its number, by which
`["method", number, name, arguments, keywords]` and `["attribute", number, name]` use it. An answer
is `["value", result, changed]`, `["raised", type, text]`, or `["refused", why]` for a result that
is not a plain value. `changed` has the arguments that the call changed in place, by their positions
or names.

The program can read and change everything here. That does no harm: its answers are compared
elsewhere, with values that it never sees.
"""

from __future__ import annotations

import os
import sys

from plain import NotPlainError, decode, encode, read_message, take_streams, write_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_CHANGEABLE = (list, dict, set, bytearray)


def serve(path: str) -> None:
    """Runs the program of a file, then answers requests until there are no more."""
    requests, answers, _ = take_streams(2, 2)
    namespace = _namespace(path)
    objects: list[Any] = []
    # The program waits for its tests to start: if both ran, the tests would wait for a processor.
    request = read_message(requests)
    write_message(answers, _answer(_load, path, namespace))
    while request is not None:
        if request[0] != "start":
            write_message(answers, _answer(_fulfil, request, namespace, objects))
        request = read_message(requests)
    # What the program would do at its end does not matter.
    os._exit(0)


def _namespace(path: str) -> dict[str, Any]:
    module = type(sys)("program")
    module.__file__ = path
    # Runs as if imported: the part under `if __name__ == "__main__"` is for standard input.
    sys.modules["program"] = module
    return module.__dict__


def _load(path: str, namespace: dict[str, Any]) -> tuple[Any, dict]:
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec"), namespace)
    return None, {}


def _fulfil(request: list, namespace: dict[str, Any], objects: list[Any]) -> tuple[Any, dict]:
    kind, target, *rest = request
    if kind == "attribute":
        return encode(getattr(objects[target], rest[0])), {}
    if kind == "method":
        function, rest = getattr(objects[target], rest[0]), rest[1:]
    else:
        function = eval(target, namespace)
    arguments = [decode(value) for value in rest[0]]
    keywords = {name: decode(value) for name, value in rest[1].items()}
    result = function(*arguments, **keywords)
    if kind == "new":
        objects.append(result)
        return len(objects) - 1, {}
    if type(result).__name__ == "coroutine":
        import asyncio

        result = asyncio.run(result)
    value = encode(result)
    changed: dict[int | str, Any] = {}
    given = [*enumerate(arguments), *keywords.items()]
    for (position, argument), before in zip(given, (*rest[0], *rest[1].values()), strict=True):
        if isinstance(argument, _CHANGEABLE):
            after = encode(argument)
            if after != before:
                changed[position] = after
    return value, changed


def _answer(action: Callable[..., tuple[Any, dict]], *operands: object) -> list:
    try:
        value, changed = action(*operands)
        return ["value", value, changed]
    except NotPlainError as error:
        return ["refused", str(error)]
    except BaseException as error:
        try:
            text = str(error)[:500]
        except BaseException:
            text = ""
        return ["raised", type(error).__name__, text]
