"""JSON schemas of Python functions, and the check of arguments against them.

`transformers` is imported when the first schema is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def function_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Makes the JSON schema of a function from its annotations and its docstring.

    Args:
      function: a function or a bound method. Each parameter has an annotation, and a line under
        `Args:` in the docstring.

    Raises:
      ValueError: an annotation or a line is missing, or has no JSON schema.
    """
    from transformers.utils import get_json_schema

    try:
        return get_json_schema(function)
    except Exception as error:  # transformers raises errors of its own, which it does not export.
        name = getattr(function, "__name__", repr(function))
        reason = " ".join(str(error).split())
        raise ValueError(
            f"The tool {name} has no schema: {reason} Give each parameter an annotation of a JSON"
            " type, and a line under 'Args:' in its docstring."
        ) from error


def wrong_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    """Says what is wrong with the arguments of a call; None if nothing is.

    Values must have the JSON types of the schema: nothing is converted, `3.0` is no integer, and
    `true` is no number.

    Args:
      schema: a function's schema, from `function_schema`.
      arguments: JSON values by name.
    """
    parameters = schema["function"].get("parameters", {})
    known = parameters.get("properties", {})
    missing = [name for name in parameters.get("required", ()) if name not in arguments]
    if missing:
        return f"the argument {missing[0]!r} is missing"
    for name, value in arguments.items():
        if name not in known:
            names = ", ".join(known) or "none"
            return f"there is no argument {name!r} (its arguments: {names})"
        wrong = _wrong(known[name], value, repr(name))
        if wrong is not None:
            return wrong
    return None


def _wrong(schema: Mapping[str, Any], value: object, place: str) -> str | None:
    if value is None and schema.get("nullable"):
        return None
    if "anyOf" in schema:
        wrongs = [_wrong(choice, value, place) for choice in schema["anyOf"]]
        return None if None in wrongs else " and ".join(filter(None, wrongs))
    kinds = schema.get("type")
    names = [kinds] if isinstance(kinds, str) else list(kinds or ())
    if names and not any(_is(name, value) for name in names):
        return f"{place} must be of type {' or '.join(names)}, not {value!r}"
    choices = schema.get("enum")
    if choices is not None and not any(value == c and type(value) is type(c) for c in choices):
        return f"{place} must be one of {', '.join(map(repr, choices))}, not {value!r}"
    return _wrong_inside(schema, value, place)


def _wrong_inside(schema: Mapping[str, Any], value: object, place: str) -> str | None:
    inner: list[tuple[Mapping[str, Any], Any, str]] = []
    if isinstance(value, list):
        firsts = schema.get("prefixItems")
        if firsts is not None and len(firsts) != len(value):
            return f"{place} must have {len(firsts)} items, not {len(value)}"
        items = firsts if firsts is not None else [schema.get("items", {})] * len(value)
        inner = [(s, v, f"{place}[{i}]") for i, (s, v) in enumerate(zip(items, value, strict=True))]
    elif isinstance(value, dict):
        others = schema.get("additionalProperties")
        if isinstance(others, Mapping):  # A schema by hand may have true or false.
            inner = [(others, v, f"{place}[{k!r}]") for k, v in value.items()]
    return next((wrong for part in inner if (wrong := _wrong(*part)) is not None), None)


def _is(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _KINDS.get(name, (object,)))
