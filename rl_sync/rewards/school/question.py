"""The interface of a school question, and the reading of a row's fields."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

from rl_sync.rewards.judgement import Row

_SHOWN_CHARACTERS = 80


class Marks(NamedTuple):
    """The marks for an answer.

    Attributes:
      share: the share of full marks, from 0 to 1.
      why: the reason.
      answer: the answer in canonical form: equal answers are equal texts; "" if it cannot be read.
    """

    share: float
    why: str
    answer: str = ""


class UnjudgeableError(RuntimeError):
    """Raised when an answer cannot be judged, because a package is missing."""


class Question(Protocol):
    """A question of one kind, with its right answer."""

    @classmethod
    def of(cls, row: Row) -> Question:
        """Reads the question of a row.

        Raises:
          ValueError: a field is missing or malformed; the message names it, its value and the way
            out.
        """
        ...

    def mark(self, answer: str) -> Marks:
        """Marks an answer.

        Raises:
          UnjudgeableError: it cannot be judged.
        """
        ...


def shown(value: object) -> str:
    """Writes a value for a message, cut to a sane length."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def refuse(row: Row, field: str, rule: str) -> ValueError:
    """Makes the error of a row's field, with its name, its value and the rule that it breaks."""
    return ValueError(f"row[{field!r}]={shown(row.get(field))} {rule}")


def accepted_texts(value: object) -> tuple[str, ...] | None:
    """Reads one accepted spelling or a list of several; None if it is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str | int | float):
        return (str(value),) if str(value).strip() else None
    if isinstance(value, list | tuple) and value:
        texts = [accepted_texts(one) if not isinstance(one, list) else None for one in value]
        if all(texts):
            return tuple(text for each in texts if each for text in each)
    return None


def number_field(row: Row, field: str, default: float, greatest: float = math.inf) -> float:
    """Reads an optional number that is not negative.

    Raises:
      ValueError: it is something else.
    """
    given: Any = row.get(field, default)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= greatest:
        bound = "" if greatest == math.inf else f" and at most {greatest:g}"
        raise refuse(row, field, f"must be a number of at least 0{bound}.")
    return float(given)
