"""Options of a part, and its findings."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class PartOptions(NamedTuple):
    """Choices that the command line gives to every part.

    Attributes:
      small: whether shapes are so small that a CPU can run them.
      smollm2: directory of SmolLM2; None for none.
    """

    small: bool = False
    smollm2: Path | None = None


class Finding(NamedTuple):
    """One line of a part's table.

    Attributes:
      name: measured quantity, with the sizes that matter.
      value: the number, or a text.
      unit: unit of the number.
      beside: figure to compare it with, and remarks.
    """

    name: str
    value: float | str
    unit: str = ""
    beside: str = ""


class CheckFailedError(RuntimeError):
    """The device computes something else than it should; the message is one line."""


def spread(numbers: list[float], form: str = ".3g") -> str:
    """Writes the least, the median and the greatest of some numbers."""
    ordered = sorted(numbers)
    three = (ordered[0], ordered[len(ordered) // 2], ordered[-1])
    return " / ".join(format(number, form) for number in three)


def median(numbers: list[float]) -> float:
    """Returns the median; of an even count, the greater of the two in the middle."""
    return sorted(numbers)[len(numbers) // 2]
