"""Plain data: the values that answers of environments may contain."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any

from rl_sync.environments.hosts.host import Failure
from rl_sync.environments.interface import (
    Message,
    Outcome,
    SeatedOutcome,
    SeatedTurn,
    Standing,
    ToolCall,
    Turn,
)
from rl_sync.images import Image

_RECORDS = {
    cls.__name__: cls
    for cls in (
        *(Turn, SeatedTurn, Outcome, SeatedOutcome, Standing),
        *(Failure, Message, ToolCall),
    )
}
_ATOMS = (str, int, float, bool, bytes, type(None))
_DEEPEST = 32


def plain(value: object, where: str) -> Any:
    """Copies a record of plain data; scalars of NumPy become numbers of Python.

    Images get the bytes of their files, since the environment may delete or change a file.

    Args:
      value: a record of `rl_sync.environments.interface`, text, a number, bytes, None, or a tuple
        or list of such values, or a mapping from text to them.
      where: the value's name in messages.

    Raises:
      ValueError: a part has another type, or an image's file cannot be read; the message names the
        part.
    """
    return _copy(value, where, _DEEPEST)


def _copy(value: object, where: str, depth: int) -> Any:
    if type(value) in _ATOMS:
        return value
    if not depth:
        raise ValueError(f"{where} is nested more than {_DEEPEST} deep.")
    if isinstance(value, Image):
        try:
            return value.packed()
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    if _RECORDS.get(type(value).__name__) is type(value):
        return _record(value, where, depth)
    if isinstance(value, Mapping):
        return _mapping(value, where, depth)
    if isinstance(value, tuple | list):
        parts = [_copy(part, f"{where}[{i}]", depth - 1) for i, part in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return _copy(value.item(), where, depth - 1)
    # A member of an enumeration, or a fraction.
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, int) else float(value)
    raise ValueError(
        f"{where} is a {type(value).__name__}, not plain data: text, numbers, bytes, images, None,"
        " and lists, tuples and mappings of these."
    )


def _record(value: Any, where: str, depth: int) -> Any:
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(rewards := fields.get("rewards"), Mapping):
        fields["rewards"] = {name: _only_entry(one) for name, one in rewards.items()}
    if "reward" in fields:
        fields["reward"] = _only_entry(fields["reward"])
    copied = {name: _copy(one, f"{where}.{name}", depth - 1) for name, one in fields.items()}
    return type(value)(**copied)


def _only_entry(value: Any) -> Any:
    """Returns the number in an array with one entry, or any other value."""
    is_one = getattr(value, "size", None) == 1 and hasattr(value, "item")
    return value.item() if is_one else value


def _mapping(value: Mapping[Any, Any], where: str, depth: int) -> dict[str, Any]:
    copied = {}
    for key, part in value.items():
        if not isinstance(key, str):
            raise ValueError(f"{where} has the key {key!r}; keys must be text.")
        copied[str(key)] = _copy(part, f"{where}[{key!r}]", depth - 1)
    return copied
