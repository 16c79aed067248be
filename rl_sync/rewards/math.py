"""A reward for answers in mathematics: numbers, formulas, sets, intervals, choices and words.

docs/rewards-math.md says what is equal and what is not.
"""

from __future__ import annotations

import dataclasses
import math
import time

from rl_sync.rewards.answers import algebra
from rl_sync.rewards.answers.answer_comparison import needs_algebra, parts_of, same_value, written
from rl_sync.rewards.answers.answer_values import Formula, Value, value
from rl_sync.rewards.answers.canonical import canonical
from rl_sync.rewards.answers.cpu_limits import NoLimitsError
from rl_sync.rewards.answers.extraction import (
    DEFAULT_STRATEGIES,
    extract,
    gold_answer,
    strategies_of,
)
from rl_sync.rewards.answers.notation import compact, latex, unified
from rl_sync.rewards.judgement import Completion, Judgement, Row

_MOST_CHARACTERS = 1000
_SHOWN_CHARACTERS = 80
_SPENT, _BUSY = "limit_spent", "machine_busy"
"""Components of formula comparisons: 1 if the limit of CPU time or memory was reached, and 1 if the
machine was too busy."""
_checked = {"secs": 0.0}
_CHECK_SECS = 10.0
"""CPU seconds that a process spends on checking the formulas of rows before the run."""


@dataclasses.dataclass(frozen=True)
class MathAnswer:
    """Compares the final answer of a completion with the row's answer: 1 or 0.

    Attributes:
      field: the row's field with the right answer: a number, a text, or a worked solution that
        marks its answer with a box, #### or <answer>.
      extract: strategies that find the answer in the completion, tried in order and separated by
        commas; see `rl_sync.rewards.answers.extraction`.
      tolerance: the greatest difference of equal numbers, relative to the larger one; 0 compares
        them exactly.
      symbolic: whether math-verify compares formulas. Without it, formulas are equal only if they
        are written the same way.
      limit_secs: the CPU seconds that math-verify may take to read the row's answer, and again to
        compare with it.
      memory_mb: the memory limit of math-verify, in megabytes.

    Raises:
      ValueError: an unknown strategy, or a number outside its range.
    """

    field: str = "answer"
    extract: str = DEFAULT_STRATEGIES
    tolerance: float = 0.0
    symbolic: bool = True
    limit_secs: float = 5.0
    memory_mb: float = 1024.0

    def __post_init__(self) -> None:
        strategies_of(self.extract)
        if not 0 <= self.tolerance < 1:
            raise ValueError(
                f"tolerance={self.tolerance!r} must be at least 0 and below 1: it is a share of"
                " the number."
            )
        for name in ("limit_secs", "memory_mb"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)!r} must be above 0.")

    def check(self, row: Row) -> None:
        """Refuses a row whose answer cannot be used.

        Raises:
          ValueError: the answer is missing, empty, too long or not a text or a number, or it is a
            formula and math-verify is not installed.
        """
        gold = self._gold(row)
        right = value(gold)
        if not self.symbolic or not needs_algebra(right):
            return
        if algebra.is_installed():
            self._check_formula(gold, right)
        else:
            raise ValueError(
                f"row[{self.field!r}] is the formula {_short(gold)}, which needs math-verify:"
                f" {algebra.WAY_OUT}, or set symbolic=False to compare formulas as text."
            )

    def _check_formula(self, gold: str, right: Value) -> None:
        """Refuses a formula that cannot be read.

        After `_CHECK_SECS` of checks, formulas are left to the run to check.
        """
        began = time.process_time()
        if _checked["secs"] > _CHECK_SECS:
            return
        try:
            for part in parts_of(right):
                algebra.read(written(part), self.limit_secs, int(self.memory_mb * 1e6))
        except (algebra.UnreadableFormulaError, algebra.LimitError) as error:
            raise ValueError(
                f"row[{self.field!r}]={_short(gold)} cannot be used: {error}. Correct the row,"
                " leave it out, or take another reward, such as exact."
            ) from error
        except (algebra.BusyError, NoLimitsError):
            return  # This process cannot check it; a worker will.
        finally:
            _checked["secs"] += time.process_time() - began

    def warm_up(self) -> None:
        """Prepares a worker: imports what formulas need."""
        if self.symbolic:
            algebra.warm_up()

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges a completion."""
        try:
            gold = self._gold(row)
        except ValueError as error:
            return Judgement.unknown(str(error))
        found = extract(completion.text, strategies_of(self.extract), completion.truncated)
        if found is None:
            cut = ", and it was truncated" if completion.truncated else ""
            return Judgement(0.0, f"no answer found by {self.extract}{cut}")
        if not found.text:
            return Judgement(0.0, f"the answer found by {found.strategy} is empty")
        if len(found.text) > _MOST_CHARACTERS:
            return Judgement(
                0.0,
                f"the answer found by {found.strategy} has {len(found.text):,} characters, and at"
                f" most {_MOST_CHARACTERS:,} are read",
            )
        judged = self._compared(gold, found.text)
        where = f"{_short(found.text)} ({found.strategy}) against {_short(gold)}"
        vote = self._vote(gold, found.text, judged)
        return dataclasses.replace(judged, why=f"{where}: {judged.why}", answer=vote)

    def _gold(self, row: Row) -> str:
        """Returns the right answer of a row.

        Raises:
          ValueError: the answer is missing, empty, too long, or neither a text nor a number.
        """
        given = row.get(self.field)
        if isinstance(given, bool) or not isinstance(given, str | int | float):
            raise ValueError(
                f"row[{self.field!r}]={_short(given)} must be a text or a number: name the field"
                " with the right answer (math's option `field`)."
            )
        gold = gold_answer(str(given))
        if not gold or len(gold) > _MOST_CHARACTERS:
            raise ValueError(
                f"row[{self.field!r}]={_short(given)} must have an answer of 1 to"
                f" {_MOST_CHARACTERS:,} characters, and has {len(gold):,}: shorten it, or mark the"
                r" answer in it with \boxed{…} or ####."
            )
        return gold

    def _compared(self, gold: str, answer: str) -> Judgement:
        if compact(unified(gold)) == compact(unified(answer)):
            return Judgement(1.0, "the same text")
        right, given = value(gold), value(answer)
        asked: list[str] = []

        def by_algebra(one: str, other: str) -> bool:
            asked.append(one)
            return algebra.equal(
                one,
                other,
                tolerance=self.tolerance,
                limit_secs=self.limit_secs,
                memory_bytes=int(self.memory_mb * 1e6),
            )

        try:
            equal = same_value(right, given, self.tolerance, by_algebra if self.symbolic else None)
        except algebra.BusyError as error:
            return dataclasses.replace(Judgement.unknown(str(error)), components={_BUSY: 1.0})
        except (algebra.MissingError, NoLimitsError) as error:
            return Judgement.unknown(str(error))
        except (algebra.UnreadableFormulaError, algebra.LimitError) as error:
            return self._undecided(right, error)
        if not asked:
            return Judgement(float(equal), f"{'equal' if equal else 'not equal'} by values")
        why = f"{'equal' if equal else 'not equal'} by math-verify"
        return Judgement(float(equal), why, {_SPENT: 0.0, _BUSY: 0.0})

    def _vote(self, gold: str, answer: str, judged: Judgement) -> str:
        """Returns the answer in canonical form; all right answers are the same text."""
        right = canonical(value(gold))
        if judged.score == 1:
            return right
        by_algebra = self._written if self.symbolic and judged.score == 0 else None
        given = canonical(value(answer), by_algebra)
        return f"{given} (not equal)" if given == right else given

    def _written(self, formula: Formula) -> str:
        try:
            return algebra.canonical(
                latex(formula.text), self.limit_secs / 5, int(self.memory_mb * 1e6)
            )
        except (RuntimeError, ValueError):  # Not a formula, or too costly.
            return compact(formula.text)

    def _undecided(self, right: Value, error: Exception) -> Judgement:
        """Judges an answer that algebra could not compare.

        It is unjudged if the row's answer is at fault, and wrong otherwise.
        """
        if needs_algebra(right):
            try:
                algebra.read(written(right), self.limit_secs, int(self.memory_mb * 1e6))
            except (algebra.UnreadableFormulaError, algebra.LimitError, algebra.BusyError) as fault:
                return Judgement.unknown(f"row[{self.field!r}] cannot be used: {fault}")
        spent = float(isinstance(error, algebra.LimitError))
        why = f"not shown to be equal: {error}"
        return Judgement(0.0, why, {_SPENT: spent, _BUSY: 0.0})


def _short(one: object) -> str:
    text = repr(one)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
