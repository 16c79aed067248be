"""Descriptions of metrics, and the thresholds of alarms."""

from __future__ import annotations

from typing import NamedTuple


class Threshold(NamedTuple):
    """Values of a metric that raise an alarm after `observe.alarm_steps` trainer steps in a row.

    Attributes:
      advice: a clause with advice or the meaning.
      least: lower bound of the values that raise it; None for no such bound.
      most: upper bound of the values that raise it; None for no such bound.
      name: name of the alarm; empty for the metric's name in words.
      falling: whether the values raise it only while rewards are lower than before.
      ignored_steps: number of first trainer steps in which the values do not raise it.
      parts: texts that replace the placeholder in the metric's name.
    """

    advice: str
    least: float | None = None
    most: float | None = None
    name: str = ""
    falling: bool = False
    ignored_steps: int = 0
    parts: tuple[str, ...] = ()

    @property
    def bound(self) -> str:
        """The values in words, such as `0.3 or more while rewards fall`."""
        value, side = (self.most, "less") if self.least is None else (self.least, "more")
        return (
            f"{value:g} or {side}"
            + f" after {self.ignored_steps} steps" * bool(self.ignored_steps)
            + " while rewards fall" * self.falling
        )

    def __str__(self) -> str:
        parts = " or ".join(f"`{part}`" for part in self.parts)
        return f"{parts} {self.bound}: {self.advice}".strip()

    def holds(self, value: float) -> bool:
        """Says whether a value is beyond the threshold."""
        return (self.least is not None and value >= self.least) or (
            self.most is not None and value <= self.most
        )


class Metric(NamedTuple):
    """A metric, or several metrics whose names differ in one part.

    Attributes:
      name: its name; parts in capitals are placeholders for any text.
      meaning: a sentence.
      unit: unit of the number; empty for a share or a plain number.
      normal: values of a healthy run; empty if tasks differ too much.
      alarm: values that deserve a look, and where to look: a threshold that a run watches, or
        words; empty for none.
      trl, verl: names of the same number in TRL and verl; empty if they have none.
    """

    name: str
    meaning: str
    unit: str = ""
    normal: str = ""
    alarm: Threshold | str = ""
    trl: str = ""
    verl: str = ""
