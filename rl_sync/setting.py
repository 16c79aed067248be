"""Settings, each described once: its default, bounds, unit, and a sentence for its user.

A section of the config is a frozen dataclass. `setting` makes its fields, and `section` makes the
fields that are sections themselves. The config's defaults, the checks (`check`), the listing on the
command line and the page of settings (`sections`) are derived from them.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from rl_sync.spelling import require_one_of

Free = Literal["", "after_sft", "always"]


@dataclasses.dataclass(frozen=True)
class Setting:
    """Description of a field in a section of the config.

    Attributes:
      meaning: one or two plain sentences.
      unit: unit of the number, such as `tokens` or `seconds`; empty for none.
      least, greatest: inclusive bounds.
      above, below: exclusive bounds.
      choices: allowed values; empty for any.
      implied: meaning of None, if None is the default; empty if None is not a value. For a section:
        the default meaning of None for its settings.
      is_path: whether a value may be a path on this machine, and start with `~`.
      free: when a resumed run may use another value, because it does not change what is learned:
        `always`, `after_sft` once SFT is over, or empty for never. For a section: the default for
        its settings.
    """

    meaning: str
    unit: str = ""
    least: float | None = None
    greatest: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    implied: str = ""
    is_path: bool = False
    free: Free = ""

    @property
    def bounds(self) -> str:
        """Bounds in words with the unit, as in `at least 1 and below 4`; empty for none."""
        words = {
            "at least": self.least,
            "above": self.above,
            "at most": self.greatest,
            "below": self.below,
        }
        bounds = " and ".join(f"{word} {_text(at)}" for word, at in words.items() if at is not None)
        unit = self.unit.removesuffix("s") if bounds.endswith(" 1") else self.unit
        return f"{bounds} {unit}".rstrip() if bounds else ""

    def holds(self, value: float) -> bool:
        """Says whether a number is within the bounds; NaN is within none."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.greatest is None or value <= self.greatest)
            and (self.below is None or value < self.below)
        )


def setting(default: Any, meaning: str, **others: Any) -> Any:
    """Makes the dataclass field of a setting; `others` are the other attributes of `Setting`."""
    return dataclasses.field(default=default, metadata={"setting": Setting(meaning, **others)})


def section(record: type, meaning: str, implied: str = "", free: Free = "") -> Any:
    """Makes the dataclass field of a nested section, with that section's own defaults."""
    about = Setting(meaning, implied=implied, free=free)
    return dataclasses.field(default_factory=record, metadata={"setting": about})


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the settings of a nested config by their names, such as `sync.mode`."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def described(field: dataclasses.Field[Any]) -> Setting | None:
    """Returns the description of a field; None if `setting` or `section` did not make it."""
    return field.metadata.get("setting")


def check(record: Any, name: str) -> None:
    """Rejects a section if one of its values is outside its bounds or its choices.

    Args:
      record: the section; settings that are None are accepted.
      name: name of the section, such as `trainer`; empty for the config itself.

    Raises:
      ValueError: names the setting, its value, its bounds and its meaning.
    """
    for field in dataclasses.fields(record):
        rule, value = described(field), getattr(record, field.name)
        if rule is None or value is None:
            continue
        path = _joined(name, field.name)
        if rule.choices:
            require_one_of(path, value, rule.choices)
        if rule.bounds and not rule.holds(value):
            left_out = f", or left out for {rule.implied}" if rule.implied else ""
            raise ValueError(
                f"{path}={_text(value)} must be {rule.bounds}{left_out}. {rule.meaning}"
            )


class SettingEntry(NamedTuple):
    """A setting at its place in the config.

    Attributes:
      name: full name, such as `trainer.mesh.data`.
      kind: type of its values other than None.
      default: default value; None means what `setting.implied` says.
      setting: description of the setting.
    """

    name: str
    kind: type
    default: Any
    setting: Setting


class Section(NamedTuple):
    """A section of the config.

    Attributes:
      name: full name, such as `trainer.mesh`; empty for the config itself.
      meaning: one sentence.
      entries: settings of the section, without those of its nested sections.
    """

    name: str
    meaning: str
    entries: tuple[SettingEntry, ...]


@functools.cache
def field_types(record: type) -> Mapping[str, Any]:
    """Returns the types of a record's fields by their names."""
    return typing.get_type_hints(record)


@functools.cache
def sections(record: type, name: str = "") -> tuple[Section, ...]:
    """Returns a record as a section, then its nested sections, in the order of their fields.

    Args:
      name: name of the record in the config.
    """
    return tuple(_sections(record, name, Setting("")))


def _sections(record: type, name: str, about: Setting) -> Iterator[Section]:
    """Yields a record as a section, then its nested sections.

    Args:
      name: name of the record in the config.
      about: the description of the field that holds it.
    """
    kinds = field_types(record)
    entries: list[SettingEntry] = []
    inner: list[tuple[type, str, Setting]] = []
    for field in dataclasses.fields(record):
        kind, path = kinds[field.name], _joined(name, field.name)
        rule = described(field)
        assert rule is not None, f"{path} has no description"
        rule = dataclasses.replace(rule, free=rule.free or about.free)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            inner.append((kind, path, rule))
        elif about.implied:
            rule = dataclasses.replace(rule, implied=rule.implied or about.implied)
            entries.append(SettingEntry(path, _without_none(kind), None, rule))
        else:
            default = None if rule.implied else field.default
            entries.append(SettingEntry(path, _without_none(kind), default, rule))
    yield Section(name, about.meaning, tuple(entries))
    for one in inner:
        yield from _sections(*one)


def _without_none(kind: Any) -> type:
    return next((one for one in typing.get_args(kind) if one is not type(None)), kind)


def _joined(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


def _text(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)
