"""Loads a task of the user's own: a function or a class that makes the problems."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rl_sync.expression import parse_call
from rl_sync.references import is_reference, resolve
from rl_sync.spelling import hint
from rl_sync.tasks import dataset
from rl_sync.tasks.data_rows import DataRow
from rl_sync.tasks.dataset import DatasetConfig
from rl_sync.tasks.pictures.places import PLACEHOLDER
from rl_sync.tasks.problems import Problems

_PARTS = ("train", "held_out")
_MOST_ROWS = 10_000_000


def is_own(name: str) -> bool:
    """Says whether a task's name is a reference, with or without options."""
    return is_reference(name.partition("(")[0].strip())


def load(name: str, config: DatasetConfig, seed: int, placeholder: str = PLACEHOLDER) -> Problems:
    """Calls the user's function or class for its problems, with `seed` if it takes a seed.

    The function returns rows (mappings, which `task.dataset` maps to problems, some of them held
    out), or {"train": rows, "held_out": rows}, or `Problems`. A class may have a method `load` that
    returns one of these. The result must be the same for the same seed, since each role calls it.

    Args:
      name: reference, such as `path/to/file.py:function(level=3)`.
      config: meaning of the rows' fields.
      placeholder: see `dataset.load`.

    Raises:
      ValueError: the function or class cannot be imported or called, or returns something else.
    """
    call = parse_call(name, "task.name")
    found = _called(resolve(call.name), {**call.options}, seed, call.name)
    if hasattr(found, "load"):
        found = _called(found.load, {}, seed, f"{call.name}.load")
    if isinstance(found, Problems):
        return found
    if isinstance(found, Mapping):
        if set(found) != set(_PARTS):
            raise ValueError(
                f"The task {call.name} returned a mapping of {', '.join(map(str, found))}; it must"
                f" have {' and '.join(_PARTS)}."
            )
        train, held_out = (_rows(call.name, part, found[part]) for part in _PARTS)
        return dataset.problems_of(config, train, held_out, seed, placeholder=placeholder)
    rows = _rows(call.name, "", found)
    some = rows[: config.limit or None]
    return dataset.problems_of(config, some, None, seed, placeholder=placeholder)


def _called(function: Callable[..., object], options: dict[str, Any], seed: int, name: str) -> Any:
    parameters = inspect.signature(function).parameters
    for option in options:
        if option not in parameters:
            has = f"it has {', '.join(parameters)}" if parameters else "it has none"
            raise ValueError(
                f"The task {name} has no option {option!r}: {has}{hint(option, parameters)}"
            )
    if "seed" in parameters:
        options.setdefault("seed", seed)
    try:
        return function(**options)
    except Exception as error:
        raise ValueError(f"The task {name} failed: {type(error).__name__}: {error}") from error


def _rows(name: str, part: str, found: object) -> list[DataRow]:
    where = f"{name}, {part} row" if part else f"{name}, row"
    if not isinstance(found, Iterable) or isinstance(found, str):
        raise ValueError(
            f"The task {name} returned a {type(found).__name__}; it must return rows, a mapping of"
            " train and held_out to rows, or Problems."
        )
    taken = list(itertools.islice(found, _MOST_ROWS + 1))
    if len(taken) > _MOST_ROWS:
        raise ValueError(f"The task {name} has more than {_MOST_ROWS:,} rows: let it end sooner.")
    for number, fields in enumerate(taken, start=1):
        if not isinstance(fields, Mapping):
            raise ValueError(f"{where} {number} is {fields!r}, not a mapping of fields.")
    if not taken:
        raise ValueError(f"The task {name} has no {part + ' ' if part else ''}rows.")
    return [DataRow(f"{where} {number}", fields) for number, fields in enumerate(taken, start=1)]
