"""A setting, described once: its default, its bounds, its unit, and a sentence for its user.

A section of the config is a frozen dataclass whose fields are made by `setting`. From these come
the config's defaults, the checks (`check`), the listing on the command line and its page.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rl_sync.spelling import hint


@dataclasses.dataclass(frozen=True)
class Setting:
    """Description of a field of a config's section.

    Attributes:
      meaning: one plain sentence, or two.
      unit: of the number, such as `tokens` or `seconds`; empty for none.
      least, greatest: bounds that the value may have.
      above, below: bounds that it may not have.
      choices: the only values there are; empty for any.
      implied: what None stands for; empty where None is no value.
    """

    meaning: str
    unit: str = ""
    least: float | None = None
    greatest: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    implied: str = ""

    @property
    def bounds(self) -> str:
        """The bounds in words, as in `at least 1 and below 4`; empty for none."""
        words = {
            "at least": self.least,
            "above": self.above,
            "at most": self.greatest,
            "below": self.below,
        }
        return " and ".join(f"{word} {_text(at)}" for word, at in words.items() if at is not None)

    def holds(self, value: float) -> bool:
        """Says whether a number is within the bounds; NaN is not."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.greatest is None or value <= self.greatest)
            and (self.below is None or value < self.below)
        )


def setting(default: Any, meaning: str, **bounds: Any) -> Any:
    """Makes the field of a setting; `bounds` are the other attributes of `Setting`."""
    return dataclasses.field(default=default, metadata={"setting": Setting(meaning, **bounds)})


def section(record: type, meaning: str) -> Any:
    """Makes the field of a section in another, with that section's own defaults."""
    return dataclasses.field(default_factory=record, metadata={"setting": Setting(meaning)})


def described(field: dataclasses.Field[Any]) -> Setting | None:
    """The description of a field; None for one that `setting` and `section` did not make."""
    return field.metadata.get("setting")


def check(record: Any, name: str) -> None:
    """Refuses a section one of whose values is outside its bounds or its choices.

    Args:
      record: the section; None passes where it stands for something.
      name: of the section, such as `trainer`.

    Raises:
      ValueError: names the setting, its bounds and its value.
    """
    for field in dataclasses.fields(record):
        rule, value = described(field), getattr(record, field.name)
        if rule is None or value is None:
            continue
        if rule.choices and value not in rule.choices:
            raise ValueError(
                f"{name}.{field.name}={value!r} is not one of {', '.join(rule.choices)}"
                f"{hint(value, rule.choices)}"
            )
        if rule.bounds and not rule.holds(value):
            unit = f" {rule.unit}" if rule.unit else ""
            raise ValueError(f"{name}.{field.name}={_text(value)} must be {rule.bounds}{unit}.")


def _text(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)
