"""Compares two answers as values: exactly, symmetrically, by algebra only if needed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

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
    Union,
    Value,
    Words,
    value,
)
from rl_sync.rewards.answers.notation import compact, latex
from rl_sync.rewards.answers.numbers import Number, same_number
from rl_sync.rewards.answers.units import agree

Algebra = Callable[[str, str], bool]
"""Says whether two formulas in LaTeX are equal. It may raise, which ends the comparison."""

JOINTS = {"or": r" \lor ", "and": r" \land "}
"""LaTeX signs between conditions, by joint."""

_Same = Callable[[Value, Value], bool]
_RELATIONS = ("<", ">", r"\le", r"\ge", r"\ne", r"\in", "=")


def same_value(one: Value, other: Value, tolerance: float, algebra: Algebra | None) -> bool:
    """Says whether two values are equal.

    Args:
      tolerance: the greatest difference of equal numbers, relative to the larger one.
      algebra: compares formulas; without it, they are equal if they are written the same way.
    """

    def same(a: Value, b: Value) -> bool:
        return same_value(a, b, tolerance, algebra)

    def by_algebra(a: Value, b: Value) -> bool:
        texts = sorted([written(a), written(b)])  # The order of the arguments must not matter.
        return texts[0] == texts[1] or (algebra is not None and algebra(*texts))

    # The value whose kind comes first in `_ORDER` decides how the two are compared.
    first, second = sorted((one, other), key=lambda each: _ORDER.index(type(each)))
    match first:
        case Labelled():
            return _same_labelled(first, second, same, by_algebra)
        case FormulaWithUnit():
            return _same_measured(first, second, same)
        case Conditions():
            return by_algebra(first, second)
        case LetteredAnswer():
            if isinstance(second, LetteredAnswer):
                return first.letter == second.letter
            return bool(first.rest) and same(value(first.rest), second)
        case Words() | Based():
            return first == second
        case Colon():
            return isinstance(second, Colon) and _same_colon(first, second, tolerance)
        case Matrix():
            if isinstance(second, Matrix):
                return _same_matrix(first, second, same)
            return isinstance(second, Formula) and by_algebra(first, second)
        case Union():
            return _same_union(first, second, tolerance, by_algebra)
        case Collection():
            return _same_collection(first, second, tolerance, algebra)
        case Number() if isinstance(second, Number):
            return same_number(first, second, tolerance)
    if isinstance(first, Number) and first.unit == "°" and r"\pi" in written(second):
        return by_algebra(_radians(first), second)
    return by_algebra(first, second)


def _radians(degrees: Number) -> Formula:
    return Formula(rf"({written(degrees)}) \cdot \frac{{\pi}}{{180}}")


def _same_measured(one: FormulaWithUnit, other: Value, same: _Same) -> bool:
    """Compares a formula with a unit; a missing unit fits any."""
    if isinstance(other, FormulaWithUnit):
        return agree(one.unit, other.unit) and same(one.value, other.value)
    if isinstance(other, Number) and other.unit:
        if (one.unit, other.unit) == ("rad", "°"):
            return same(one.value, other)
        return agree(one.unit, other.unit) and same(one.value, other._replace(unit=""))
    return same(one.value, other)


_ORDER = (
    Labelled,
    FormulaWithUnit,
    Conditions,
    LetteredAnswer,
    Words,
    Based,
    Colon,
    Matrix,
    Union,
    Collection,
    Number,
    Formula,
)


def _same_colon(one: Colon, other: Colon, tolerance: float) -> bool:
    halves = {one.half, other.half} - {""}
    a, b = ([term.value for term in colon.terms] for colon in (one, other))
    if len(halves) == 1 and len(a) == len(b) and a[1:] == b[1:]:
        # A time with am or pm equals the same digits without it, and its 24-hour form.
        hours = {a[0], b[0]}
        return len(hours) == 1 or (
            one.half != other.half
            and max(hours) == min(hours) % 12 + 12 * (halves == {"pm"})
            and max(hours) < 24
        )
    return (
        len(halves) < 2
        and len(a) == len(b)
        and all(same_number(x, y, tolerance) for x, y in zip(one.terms, other.terms, strict=True))
    )


def _same_labelled(one: Labelled, other: Value, same: Callable, by_algebra: Callable) -> bool:
    """Compares `x = 5` with another value; a name that only one side gives does not matter."""
    if not isinstance(other, Labelled):
        if isinstance(other, Formula) and "=" in other.text:
            return by_algebra(one, other)
        return same(one.value, other)
    labels = {one.label, other.label}
    if len(labels) == 2 and all(label[0] != "(" and label[-1] == ")" for label in labels):
        return False  # `f(x) = 2x` is neither `f(y) = 2x` nor `g(x) = 2x`.
    if len(labels) == 1 or any(len(label) > 3 and label[0] != "(" for label in labels):
        return same(one.value, other.value)
    has_formula = isinstance(one.value, Formula) or isinstance(other.value, Formula)
    return has_formula and by_algebra(one, other)


def _same_matrix(one: Matrix, other: Matrix, same: _Same) -> bool:
    shapes = [[len(row) for row in matrix.rows] for matrix in (one, other)]
    pairs = zip(itertools.chain(*one.rows), itertools.chain(*other.rows), strict=False)
    return shapes[0] == shapes[1] and all(same(a, b) for a, b in pairs)


def _same_union(one: Union, other: Value, tolerance: float, by_algebra: _Same) -> bool:
    if isinstance(other, Union) and _same_unordered(
        one.items, other.items, tolerance=tolerance, algebra=None, repeated=False
    ):
        return True
    return isinstance(other, Union | Collection | Formula) and by_algebra(one, other)


def _same_collection(
    one: Collection, other: Value, tolerance: float, algebra: Algebra | None
) -> bool:
    def same(a: Value, b: Value) -> bool:
        return same_value(a, b, tolerance, algebra)

    if isinstance(other, Formula):
        is_relation = any(sign in other.text for sign in _RELATIONS)
        if one.kind == "list" or not is_relation or algebra is None:
            return False
        return algebra(written(one), written(other))  # The collection first, in either order.
    if not isinstance(other, Collection):
        return one.kind == "set" and len(one.items) == 1 and same(one.items[0], other)
    kinds = {one.kind, other.kind}
    a, b = (_without_labels(each.items) for each in (one, other))
    if kinds <= {"list", "set"}:
        if kinds == {"list"} and _all_labelled(one.items) != _all_labelled(other.items):
            return _same_ordered(a, b, same)
        return _same_unordered(
            one.items, other.items, tolerance=tolerance, algebra=algebra, repeated=kinds == {"list"}
        )
    # A list without brackets fits the brackets of a point or a sequence, not of an interval.
    if len(kinds) == 1 or kinds in ({"list", "()"}, {"list", "[]"}):
        return _same_ordered(a, b, same)
    return False


def _all_labelled(items: Sequence[Value]) -> bool:
    return all(isinstance(item, Labelled) for item in items)


def _without_labels(items: Sequence[Value]) -> list[Value]:
    return [item.value if isinstance(item, Labelled) else item for item in items]


def _same_ordered(one: Sequence[Value], other: Sequence[Value], same: _Same) -> bool:
    return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))


def _same_unordered(
    one: Sequence[Value],
    other: Sequence[Value],
    tolerance: float,
    algebra: Algebra | None,
    repeated: bool,
) -> bool:
    """Says whether the values of both sides can be paired so that each pair is equal.

    Args:
      repeated: whether repeated values count, as in a list of roots.
    """
    if not repeated:
        one, other = (_distinct(items) for items in (one, other))
    if len(one) != len(other):
        return False
    left, right = list(one), list(other)
    # Plainly equal values are matched first, so that algebra compares few.
    for method in (None, algebra) if algebra is not None else (None,):
        for a in list(left):
            match = next((b for b in right if same_value(a, b, tolerance, method)), None)
            if match is not None:
                left.remove(a)
                right.remove(match)
    return not left


def _distinct(items: Sequence[Value]) -> list[Value]:
    kept: list[Value] = []
    for item in items:
        if not any(same_value(item, one, 0.0, None) for one in kept):
            kept.append(item)
    return kept


def written(one: Value) -> str:
    """Writes a value as LaTeX for algebra."""
    match one:
        case Number():
            sign, magnitude = "-" * (one.value < 0), abs(one.value)
            if magnitude.denominator == 1:
                return f"{sign}{magnitude.numerator}"
            return rf"{sign}\frac{{{magnitude.numerator}}}{{{magnitude.denominator}}}"
        case Formula():
            return latex(one.text)
        case Labelled():
            return f"{one.label} = {written(one.value)}"
        case FormulaWithUnit():
            return written(one.value)
        case Conditions():
            return JOINTS[one.joint].join(map(written, one.items))
        case Collection(kind="list" | "set"):
            return r"\{" + ", ".join(map(written, one.items)) + r"\}"
        case Collection():
            return one.kind[0] + ", ".join(map(written, one.items)) + one.kind[1]
        case Union():
            return r" \cup ".join(map(written, one.items))
        case Matrix():
            rows = [" & ".join(map(written, row)) for row in one.rows]
            return r"\begin{pmatrix}" + r" \\ ".join(rows) + r"\end{pmatrix}"
        case Words():
            return rf"\text{{{one.text}}}"
        case LetteredAnswer():
            return one.letter
        case Colon():
            return ":".join(map(written, one.terms))
        case Based():
            return f"{one.digits}_{{{one.base}}}"


def parts_of(one: Value) -> list[Value]:
    """Returns the parts of a value that algebra may have to compare."""
    match one:
        case Labelled() | FormulaWithUnit():
            return parts_of(one.value)
        case Collection() | Union():
            return [part for item in one.items for part in parts_of(item)]
        case Matrix():
            return [part for row in one.rows for cell in row for part in parts_of(cell)]
        case _:
            return [one] if needs_algebra(one) else []


def needs_algebra(one: Value) -> bool:
    """Says whether only algebra may show that an answer equals this value."""
    match one:
        case Formula():
            return one.text not in {r"\infty", r"-\infty"} and len(compact(one.text)) > 1
        case Labelled() | FormulaWithUnit():
            return needs_algebra(one.value)
        case Conditions():
            return True
        case Collection() | Union():
            return any(map(needs_algebra, one.items))
        case Matrix():
            return any(needs_algebra(cell) for row in one.rows for cell in row)
        case _:
            return False
