"""JSON forms of typed records, which newer code can read although their fields have changed.

A dataclass or a NamedTuple becomes an object with the names of its fields. A reader ignores fields
that it does not know, and gives missing ones their defaults. A mapping whose keys are not text
becomes a list of pairs. Numbers that are not finite are written as Python's `json` module does.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

from rl_sync.isolation.codec import Records

_UNIONS = (typing.Union, types.UnionType)
_MAPPINGS = (dict, Mapping, collections.abc.Mapping)
_LISTS = (list, Records)


def to_json(value: object) -> Any:
    """Returns the JSON form of numbers, text, records, and collections of them."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind: Any = type(value)
    if (names := _fields(kind)) is not None:
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        pairs = [(key, to_json(one)) for key, one in value.items()]
        if all(isinstance(key, str) for key, _ in pairs):
            return dict(pairs)
        return [[to_json(key), one] for key, one in pairs]
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    raise TypeError(f"A {type(value).__name__} has no JSON form.")


def of_json(kind: Any, form: Any) -> Any:
    """Inverts `to_json`.

    Args:
      kind: type of the value, as in an annotation.

    Raises:
      ValueError: the form lacks a field without a default, or is not of that type.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in _UNIONS:
        return _of_union(arguments, form)
    if kind is Any or kind in (bool, int, float, str):
        return form
    if (names := _fields(kind)) is not None:
        return _record(kind, names, form)
    if origin in _MAPPINGS:
        key_kind, value_kind = arguments
        pairs = form.items() if isinstance(form, Mapping) else form
        return {of_json(key_kind, key): of_json(value_kind, one) for key, one in pairs}
    if origin is tuple and arguments[-1] is not ...:
        return tuple(of_json(of, one) for of, one in zip(arguments, form, strict=True))
    if origin is tuple:
        return tuple(of_json(arguments[0], one) for one in form)
    if origin in _LISTS:
        return origin(of_json(arguments[0], one) for one in form)
    raise TypeError(f"A value of type {kind} cannot be read from JSON.")


def given_fields(kind: Any, form: Mapping[str, Any]) -> dict[str, Any]:
    """Reads those fields of a record that its JSON form has; raises what `of_json` raises."""
    names, hints = _fields(kind), _hints(kind)
    assert names is not None, f"{kind} is not a record"
    return {name: of_json(hints[name], form[name]) for name in names if name in form}


def _of_union(kinds: tuple[Any, ...], form: object) -> Any:
    """Reads an optional value; a union of records is none, as their forms do not say which."""
    (kind,) = [one for one in kinds if one is not type(None)]
    return None if form is None else of_json(kind, form)


def _record(kind: Any, names: tuple[str, ...], form: Any) -> Any:
    if not isinstance(form, Mapping):
        raise ValueError(f"a {kind.__name__} is {form!r} there, and not an object.")
    try:
        return kind(**given_fields(kind, form))
    except TypeError as error:
        missing = [name for name in names if name not in form]
        raise ValueError(f"a {kind.__name__} lacks {', '.join(missing)}.") from error


@functools.cache
def _fields(kind: Any) -> tuple[str, ...] | None:
    """Returns the names of a record's fields; None for other types."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind) if field.init)
    return getattr(kind, "_fields", None)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)
