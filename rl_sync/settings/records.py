"""Converts nested mappings to frozen records, with errors for users."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rl_sync.setting import field_types
from rl_sync.settings.renamed import new_name
from rl_sync.spelling import nearest, question

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ConfigValues = Mapping[str, Any]
"""A config as JSON has it: values of settings by their names, in nested sections."""

T = TypeVar("T", bound="DataclassInstance")
_GREATEST = 3.4e38  # About the maximum of float32, the dtype of computations with settings.


class ConfigError(ValueError):
    """Raised for a config that cannot run. The message has the rule, the value and the way out."""

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that a notebook shows: only the message."""
        return [f"{type(self).__name__}: {self}"]


def require(holds: bool, rule: str) -> None:
    """Raises `ConfigError` with the message unless the condition holds."""
    if not holds:
        raise ConfigError(rule)


def read_config(path: Path) -> dict[str, Any]:
    """Reads the config in a run's work directory.

    Raises:
      FileNotFoundError: there is no config.
      ConfigError: the file is damaged or unreadable; the message names it.
    """
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read ({error}){_DAMAGED}") from error
    require(isinstance(values, dict), f"{path} holds no config{_DAMAGED}")
    return values


_DAMAGED = ": put a copy of it back, or use another work directory."


def build(cls: type[T], values: ConfigValues, path: str) -> T:
    """Makes a dataclass from a mapping, field by field, down to nested dataclasses.

    Args:
      path: name of the mapping in errors, such as `config.sync`.

    Raises:
      ConfigError: a field is unknown (the message names the nearest), missing, of another type, or
        a number that is not finite.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path} must be a section, not {values!r}.")
    hints = field_types(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    for name in values:
        if name not in names:
            if renamed := new_name(f"{path}.{name}".removeprefix("config.")):
                raise ConfigError(f"{path}.{name} is now config.{renamed}.")
            near = nearest(str(name), names)
            meant = question(f"{path}.{near}") if near else f"{path} has {', '.join(names)}."
            raise ConfigError(f"{path}.{name} is not a setting; {meant}")
    missing = [name for name in names if name not in values]
    if missing:
        raise ConfigError(
            f"{path} lacks {', '.join(missing)}: start from rl_sync.configs.base.get_config()."
        )
    return cls(**{name: _convert(hints[name], values[name], f"{path}.{name}") for name in names})


def _convert(hint: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value, path)
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value == "None" and types.NoneType in allowed:
        return None  # A flag of a text has no other way to say that there is none.
    if float in allowed and type(value) in (int, float):
        return _finite(value, path)
    if not any(type(value) is kind for kind in allowed):
        wanted = " or ".join("nothing" if k is types.NoneType else k.__name__ for k in allowed)
        raise ConfigError(f"{path}={value!r} must be {wanted}, not {type(value).__name__}.")
    if type(value) is int and abs(value) > _most(path):
        raise ConfigError(f"{path}={value} is too large: it must be at most {_most(path)}.")
    return value


def _most(path: str) -> int:
    """Returns the maximum integer of a setting: of 32 bits, or of 63 bits for sizes in bytes."""
    return 2**63 - 1 if path.endswith("_bytes") else 2**32 - 1


def _finite(value: float, path: str) -> float:
    """Returns the number as a float, which must be finite: NaN would evade most comparisons."""
    try:
        number = float(value)
    except OverflowError:  # An integer of more than 308 digits.
        number = math.inf
    if not abs(number) <= _GREATEST:
        raise ConfigError(
            f"{path}={number} must be a finite number, also in float32: leave it out for its"
            " default, or give another."
        )
    return number
