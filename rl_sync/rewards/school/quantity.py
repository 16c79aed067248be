"""Numbers with units, which are converted, and with a tolerance."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import re
from fractions import Fraction
from typing import Any, NamedTuple

from rl_sync.rewards.answers.notation import unified, without_text_commands
from rl_sync.rewards.answers.numbers import CURRENCY_RATIO, number
from rl_sync.rewards.answers.units import UnitError, scale, unit
from rl_sync.rewards.judgement import Row
from rl_sync.rewards.school.question import (
    Marks,
    UnjudgeableError,
    number_field,
    refuse,
    shown,
)

_TITLE = re.compile("[A-Z][a-z]{2,}")
WAY_OUT = 'pip install "rl_sync[k12]"'
_NUMBER = re.compile(
    r"([-+]? ?[$€£¥₹]?)((?:[-+]? ?(?:\d[\d,]*(?: \d{3})*\.?\d*|\.\d+)(?: ?\d+ ?/ ?\d+| ?/ ?\d+)?"
    r"|(?:\d+ ?)?\\frac ?\{[^{}]*\} ?\{[^{}]*\})"
    r"(?: ?(?:\\times|\\cdot|x|\*) ?10 ?\^ ?\{?-?\d+\}?|[eE][-+]?\d+(?![\w]))?)\s*(.*)$"
)
# Powers have one digit and no power of their own, so that reading a unit costs nothing.
_FACTOR = r"\(?[A-Za-zµμΩ°$%€£¢¥₹]+\.?(?:\^?\{?-?[1-9]\}?(?![\d^]))?\)?"
_SIGNS = "$€£¥₹ "
_JOINED = re.compile(r"\b([kmM]?[NVWA])(m|s)\b")
"""Products of units without a sign, such as `Nm`, which pint would read as other units."""
_UNIT = re.compile(rf"{_FACTOR}(?:(?: ?[*·/] ?| ){_FACTOR}){{0,6}}$")


class Quantity(NamedTuple):
    """A number with the text of its unit, or "" for none."""

    value: Fraction
    unit: str


@dataclasses.dataclass(frozen=True)
class NumberQuestion:
    """A quantity, and the tolerance of answers.

    Attributes:
      tolerance: the greatest difference, relative to the right number.
      absolute_tolerance: the greatest difference, in the right answer's unit.
      unit_required: whether an answer without a unit is wrong.
    """

    right: Quantity
    tolerance: float
    absolute_tolerance: float
    unit_required: bool

    @classmethod
    def of(cls, row: Row) -> NumberQuestion:
        """Reads `answer` and the optional `unit`, tolerances and `unit_required`.

        Raises:
          ValueError: a field is missing or malformed, or the unit needs a package.
        """
        answer = row.get("answer")
        found = None if isinstance(answer, bool) else quantity(str(answer))
        if found is None:
            raise refuse(row, "answer", "must be a number, which a unit may follow.")
        extra = row.get("unit", "")
        if not isinstance(extra, str) or (extra and found.unit and extra != found.unit):
            raise refuse(row, "unit", f"must be a text and agree with the answer {shown(answer)}.")
        right = Quantity(found.value, found.unit or extra)
        if right.unit and not _counts(right.unit):
            if not is_installed():
                raise ValueError(f"The unit {right.unit!r} is converted by pint: {WAY_OUT}.")
            if not _is_money(right.unit) and _parsed(right.unit) is None:
                raise refuse(row, "unit" if extra else "answer", "has a unit that pint lacks.")
        required = row.get("unit_required", False)
        if not isinstance(required, bool) or (required and not right.unit):
            raise refuse(row, "unit_required", "must be true or false, and true needs a unit.")
        return cls(
            right,
            number_field(row, "tolerance", 0.0, greatest=1.0),
            number_field(row, "absolute_tolerance", 0.0),
            required,
        )

    def mark(self, answer: str) -> Marks:
        """Marks the number of an answer, in the unit of the right one.

        Raises:
          UnjudgeableError: units differ and pint is not installed.
        """
        given, right = quantity(answer), self.right
        if given is None:
            return Marks(0.0, f"{shown(answer)} is not a number")
        if not given.unit and self.unit_required:
            return Marks(0.0, f"has no unit; right: {_written(right)}", _written(given))
        value = given.value
        if given.unit and right.unit:
            converted = _in_unit(given, right.unit)
            if converted is None:
                why = f"has the unit {given.unit!r}; right: {_written(right)}"
                return Marks(0.0, why, _written(given))
            value = converted
        bound = max(Fraction(self.tolerance) * abs(right.value), Fraction(self.absolute_tolerance))
        return Marks(
            float(abs(value - right.value) <= bound),
            f"{_written(given)} against {_written(right)}",
            str(value),
        )


def quantity(text: str) -> Quantity | None:
    """Reads a number and its unit; None if the text is something else."""
    plain = without_text_commands(re.sub(r"^[^=]{0,40}=(?!.*=)", "", unified(text))).strip()
    match = _NUMBER.match(plain)
    if match is None or (found := number(match[1].strip(_SIGNS) + match[2])) is None:
        return None
    money = match[1].lstrip("+- ")
    name, value = match[3].rstrip(" .") or money, found.value
    while name and (factor := scale(name.split()[0])) is not None:
        name, value = name.partition(" ")[2].strip(), value * factor
        name = name or money
    if name in {"%", "percent", "per cent"}:
        return Quantity(value / 100, "")
    if name and not _UNIT.match(name):
        return None
    return Quantity(value, name)


def is_installed() -> bool:
    """Says whether pint can be imported, without importing it."""
    return importlib.util.find_spec("pint") is not None


def _canonical(name: str) -> str:
    try:
        return unit(name, is_marked=True) or name.lower().rstrip("s")
    except UnitError:
        return name


def _counts(name: str) -> bool:
    """Says whether a unit is a plain word for counted things, such as `apples`."""
    try:
        return not unit(name, is_marked=True) and _parsed(name) is None
    except UnitError:
        return False


def _is_money(name: str) -> bool:
    return _canonical(name) in {"$", "¢", "€", "£", "¥", "₹", "pence"}


def _written(one: Quantity) -> str:
    value = one.value
    text = str(value) if value.denominator < 1000 else f"{float(value):g}"
    return f"{text} {one.unit}".strip()


@functools.cache
def _registry() -> Any:
    import pint

    return pint.UnitRegistry(non_int_type=Fraction)


@functools.lru_cache(maxsize=256)
def _parsed(name: str) -> Any:
    """Returns pint's unit for a name, or None if pint has none."""
    if not is_installed():
        return None
    spelled = name.replace("°", " deg").replace("{", "").replace("}", "").replace("·", "*")
    spelled = re.sub(r"\bdeg\s*([CF])\b", r"deg\1", spelled)
    spelled = re.sub(r"\bsq(?:uare|\.)?\s+(\w+)", r"\1^2", spelled)
    spelled = re.sub(r"\bcu(?:bic|\.)?\s+(\w+)", r"\1^3", spelled)
    spelled = _JOINED.sub(r"\1*\2", re.sub(r"\bkmh\b", "km/h", spelled))
    spellings = [spelled.strip(), spelled.strip().lower()]
    if _TITLE.fullmatch(spellings[0]):
        spellings.reverse()  # `Min` at the start of a line is not a megainch.
    return next((found for one in spellings if (found := _known(one)) is not None), None)


@functools.lru_cache(maxsize=256)
def _known(spelled: str) -> Any:
    """Returns pint's unit for a name in exactly this spelling, or None if pint has none."""
    try:
        return _registry().parse_units(spelled)
    except Exception:  # pint raises its own errors, those of its tokenizer, and Python's.
        return None


def _in_unit(given: Quantity, to: str) -> Fraction | None:
    """Returns a number in another unit; None if the units measure different things.

    Pint converts the units that it knows, with case: mW is not MW. Other units are compared by
    name.

    Raises:
      UnjudgeableError: pint is not installed, and the names differ.
    """
    if given.unit == to:
        return given.value
    names = (_canonical(given.unit), _canonical(to))
    if _is_money(given.unit) or _is_money(to):
        if (ratio := CURRENCY_RATIO.get((names[1], names[0]))) is not None:
            return given.value / ratio
        if (ratio := CURRENCY_RATIO.get(names)) is not None:
            return given.value * ratio
        return given.value if names[0] == names[1] else None
    is_same = names[0] == names[1] and not _differ_by_case(given.unit, to)
    if is_same and not is_installed():
        return given.value
    converted = _converted(given, to)
    return given.value if converted is None and is_same else converted


def _differ_by_case(one: str, other: str) -> bool:
    """Says whether two names are both units known to the library Pint, and differ only in case."""
    return (
        is_installed()
        and one != other
        and one.lower() == other.lower()
        and all(_known(_JOINED.sub(r"\1*\2", each)) is not None for each in (one, other))
    )


def _converted(given: Quantity, to: str) -> Fraction | None:
    """Converts a number into another unit; None if the units measure different things.

    Raises:
      UnjudgeableError: pint is not installed.
    """
    if not is_installed():
        raise UnjudgeableError(f"pint, which converts units, is not installed: {WAY_OUT}")
    source, target = _parsed(given.unit), _parsed(to)
    if source is None or target is None:
        return None
    try:
        return Fraction(_registry().Quantity(given.value, source).to(target).magnitude)
    except Exception:  # Different dimensions, and units that pint does not convert.
        return None
