"""Algebra on formulas by math-verify, an optional package, within limits of time and memory."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
from typing import Any

from rl_sync.rewards.answers.cpu_limits import OutOfTime, within

WAY_OUT = 'pip install "rl_sync[math]"'
_DIGITS = 40
_NEGLIGIBLE = 1e-30
_FIRST = (
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"), ("x^2 + 2x", "x (x + 2)"),
    ("2x > 6", r"(3, \infty)"), ("x^2 < 4", "x > 3"), ("y = 2x", "2x - y = 0"),
    (r"\{1, \sqrt{2}\}", r"\{\sqrt{2}, 1\}"),
)  # fmt: skip
_POINTS = ((17, 13), (-31, 11), (101, 37), (-7, 29), (211, 19))
"""Rational values of the first variable at which two formulas are compared."""


class UnreadableFormulaError(ValueError):
    """Raised for a text that is not a formula.

    Attributes:
      text: the text.
    """

    def __init__(self, text: str) -> None:
        super().__init__(f"{text!r} is not a formula that math-verify reads")
        self.text = text


class LimitError(RuntimeError):
    """Raised when algebra exceeds its limit of CPU time or memory."""


class BusyError(RuntimeError):
    """Raised when algebra did not finish because the machine was too busy."""


class MissingError(RuntimeError):
    """Raised when math-verify is needed and not installed."""

    def __init__(self) -> None:
        super().__init__(f"math-verify is not installed: {WAY_OUT}")


def is_installed() -> bool:
    """Says whether math-verify can be imported, without importing it."""
    return importlib.util.find_spec("math_verify") is not None


def read(text: str, limit_secs: float, memory_bytes: int) -> None:
    """Checks that a formula can be read.

    Raises:
      UnreadableFormulaError: it cannot be read.
      LimitError: reading takes too much time or memory.
      BusyError: the machine was too busy for it.
      MissingError: math-verify is not installed.
      NoLimitsError: the computation could not be interrupted here.
    """
    _limited(limit_secs, memory_bytes, lambda: _parsed(text, _has_complex(text)))


def equal(one: str, other: str, *, tolerance: float, limit_secs: float, memory_bytes: int) -> bool:
    """Says whether two formulas in LaTeX are equal; the order of the two does not matter.

    Raises:
      UnreadableFormulaError: one of them cannot be read.
      LimitError: comparing takes too much time or memory.
      BusyError: the machine was too busy for it.
      MissingError: math-verify is not installed.
      NoLimitsError: the computation could not be interrupted here.
    """

    def compare() -> bool:
        is_complex = _has_complex(one) or _has_complex(other)
        return _same(_parsed(one, is_complex), _parsed(other, is_complex), tolerance)

    return _limited(limit_secs, memory_bytes, compare)


def canonical(text: str, limit_secs: float, memory_bytes: int) -> str:
    """Writes a formula in canonical form: a constant in digits, any other formula expanded.

    Raises:
      UnreadableFormulaError, LimitError, MissingError, NoLimitsError: as `read`.
    """

    def write() -> str:
        import sympy

        found = _parsed(text, _has_complex(text))
        if not isinstance(found, sympy.Expr):
            return str(found)
        if found.is_Rational:
            return str(found)
        return str(sympy.N(found, 12) if not found.free_symbols else sympy.expand(found))

    return _limited(limit_secs, memory_bytes, write)


def _limited(limit_secs: float, memory_bytes: int, compute: Any) -> Any:
    _load()  # Importing takes seconds, which do not count against the limit.
    try:
        return within(limit_secs, memory_bytes, compute)
    except OutOfTime as error:
        if not error.is_spent:
            raise BusyError(
                f"the machine is busy: algebra did not get its {limit_secs:g} s of CPU time"
            ) from None
        raise LimitError(f"algebra took longer than {limit_secs:g} s of CPU time") from None
    except MemoryError:
        raise LimitError(f"algebra took more than {memory_bytes / 1e6:g} MB") from None


def warm_up() -> None:
    """Imports math-verify, if it is installed, before the first answer that needs it."""
    if is_installed():
        _load()


@functools.cache
def _load() -> None:
    if not is_installed():
        raise MissingError
    # GMP ends the process when memory is short; Python's integers raise MemoryError.
    os.environ.setdefault("SYMPY_GROUND_TYPES", "python")
    os.environ.setdefault("MPMATH_NOGMPY", "1")
    import math_verify

    # The parser builds its tables when it reads for the first time, which takes most of a second.
    _parsed(r"\frac{1}{2} + \sqrt{2}", is_complex=False)
    # The first comparisons of each kind are slow, too: inequalities alone take seconds.
    for one, other in _FIRST:
        _same(_parsed(one, is_complex=False), _parsed(other, is_complex=False), 0.0)
    for name in (math_verify.__name__, "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _has_complex(text: str) -> bool:
    from math_verify.grader import should_treat_as_complex

    return should_treat_as_complex(text)


@functools.lru_cache(maxsize=128)
def _parsed(text: str, is_complex: bool) -> Any:
    import sympy

    for sign, join in ((r"\lor", sympy.Union), (r"\land", sympy.Intersection)):
        parts = text.split(sign)
        if len(parts) > 1:
            return join(*(_solutions(_parsed(part, is_complex), text) for part in parts))
    found = _read_latex(_with_exponentials(text), is_complex)
    if is_complex and isinstance(found, sympy.Expr):
        units = {one: sympy.I for one in found.free_symbols if one.name == "i"}
        found = found.subs(units)
    return found


def _with_exponentials(text: str) -> str:
    """Makes `e` with an exponent Euler's number; the parser may take it for a variable."""
    return re.sub(r"(?<![A-Za-z\\])e(?=\s*\^)", r"\\exp(1)", text)


def _solutions(found: Any, text: str) -> Any:
    """Returns the set of solutions of an inequality of one variable.

    Raises:
      UnreadableFormulaError: it is not such an inequality, or it cannot be solved.
    """
    import sympy

    if isinstance(found, sympy.Set):
        return found
    if not isinstance(found, sympy.Rel | sympy.And | sympy.Or) or len(found.free_symbols) != 1:
        raise UnreadableFormulaError(text)
    (symbol,) = found.free_symbols
    real = sympy.Symbol("x", real=True)
    try:
        return (
            sympy.solve_univariate_inequality(found.subs(symbol, real), real, relational=False)
            if isinstance(found, sympy.Rel)
            else found.subs(symbol, real).as_set()
        )
    except (NotImplementedError, ValueError, TypeError) as error:
        raise UnreadableFormulaError(text) from error


def _read_latex(text: str, is_complex: bool) -> Any:
    from latex2sympy2_extended import latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig

    try:
        found = latex2sympy(
            text,
            is_real=not is_complex,
            convert_degrees=False,
            normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )
        return found.doit() if hasattr(found, "doit") else found
    except MemoryError:
        raise
    except Exception as error:  # The parser raises plain exceptions, and SymPy any.
        raise UnreadableFormulaError(text) from error


def _same(one: Any, other: Any, tolerance: float) -> bool:
    import sympy

    if isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr):
        return _same_expression(one, other, tolerance)
    if isinstance(one, sympy.Eq) != isinstance(other, sympy.Eq):
        return False  # An equation is not a value.
    if isinstance(one, sympy.Eq) and isinstance(other, sympy.Eq):
        sides = one.lhs - one.rhs, other.lhs - other.rhs
        if any(_same_expression(sides[0], sign * sides[1], tolerance) for sign in (1, -1)):
            return True
    elif (same := _same_solutions(one, other)) is not None:
        return same
    from math_verify import verify

    return verify(
        one,
        other,
        float_rounding=15,
        numeric_precision=_DIGITS,
        allow_set_relation_comp=True,
        timeout_seconds=None,
    )


def _same_solutions(one: Any, other: Any) -> bool | None:
    """Compares inequalities and sets by their solutions; None if these do not decide."""
    import sympy

    relations = [isinstance(each, sympy.Rel | sympy.And | sympy.Or) for each in (one, other)]
    sets = [isinstance(each, sympy.Set) for each in (one, other)]
    if not all(a or b for a, b in zip(relations, sets, strict=True)):
        return None
    symbols = [
        each.free_symbols for each, is_one in zip((one, other), relations, strict=True) if is_one
    ]
    if any(len(each) != 1 or each != symbols[0] for each in symbols):
        return None
    try:
        a, b = (_solutions(each, "") for each in (one, other))
    except UnreadableFormulaError:
        return None
    return True if a == b else a.symmetric_difference(b).is_empty


def _same_expression(one: Any, other: Any, tolerance: float) -> bool:
    """Compares expressions to forty digits, at several points if they have variables."""
    import sympy

    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    if not symbols:
        return bool(one == other) or _near(one, other, tolerance) is True
    if one == other:
        return True
    seen = []
    for top, bottom in _POINTS:
        point = {
            symbol: sympy.Rational(top + 2 * i * bottom + i, bottom + 3 * i)
            for i, symbol in enumerate(symbols)
        }
        near = _near(one.subs(point), other.subs(point), tolerance)
        if near is False:
            return False
        seen.append(near)
    return seen.count(True) >= 2 or bool(sympy.simplify(one - other) == 0)


def _near(one: Any, other: Any, tolerance: float) -> bool | None:
    """Compares constants; None if one of them has no finite value."""
    import sympy

    if one.has(sympy.nan, sympy.zoo) or other.has(sympy.nan, sympy.zoo):
        return None
    if one.is_infinite or other.is_infinite:
        return bool(one == other)
    if one.is_Rational and other.is_Rational and not tolerance:
        return bool(one == other)
    a, b = sympy.N(one, _DIGITS), sympy.N(other, _DIGITS)
    if not (a.is_number and b.is_number and a.is_finite and b.is_finite):
        return None
    bound = max(abs(a), abs(b)) * max(tolerance, _NEGLIGIBLE)
    return bool(abs(a - b) <= bound)
