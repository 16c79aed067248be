"""Canonical texts of answers, which evaluations vote on: equal answers have equal texts."""

from __future__ import annotations

from collections.abc import Callable

from rl_sync.rewards.answers.answer_values import (
    Based,
    Collection,
    Colon,
    Conditions,
    Formula,
    FormulaWithUnit,
    Labelled,
    LetteredAnswer,
    Matrix,
    Number,
    Union,
    Value,
    Words,
)
from rl_sync.rewards.answers.notation import compact


def canonical(one: Value, of_formula: Callable[[Formula], str] | None = None) -> str:
    """Writes a value in canonical form.

    Args:
      of_formula: writes formulas. Without it, only formulas that are written the same way have
        equal texts.
    """

    def write(value: Value) -> str:
        return canonical(value, of_formula)

    match one:
        case Number():
            cents = one.unit == "¢"
            value, unit = (one.value / 100, "$") if cents else (one.value, one.unit)
            return f"{value} {unit}".rstrip()
        case LetteredAnswer():
            return one.letter
        case Words():
            return one.text
        case Based():
            return f"{one.digits}_{one.base}"
        case Colon():
            return ":".join(map(write, one.terms)) + one.half
        case Labelled():
            return write(one.value)
        case FormulaWithUnit():
            return f"{write(one.value)} {one.unit}".rstrip()
        case Conditions():
            return f" {one.joint} ".join(sorted(map(write, one.items)))
        case Collection(kind="list" | "set"):
            items = sorted(map(write, one.items))
            items = sorted(set(items)) if one.kind == "set" else items
            return items[0] if len(items) == 1 else "{" + ", ".join(items) + "}"
        case Collection():
            return one.kind[0] + ", ".join(map(write, one.items)) + one.kind[1]
        case Union():
            return " u ".join(sorted(set(map(write, one.items))))
        case Matrix():
            return "; ".join(", ".join(map(write, row)) for row in one.rows)
        case Formula():
            return of_formula(one) if of_formula is not None else compact(one.text)
