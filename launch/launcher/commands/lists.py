"""Lists all settings with their defaults, bounds and meanings: in a terminal, or as a page.

python -m launcher.commands.lists > docs/settings.md
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator

from rl_sync.launcher.catalogs import fits
from rl_sync.launcher.command import Arguments
from rl_sync.launcher.mistakes import settings_meant
from rl_sync.setting import Section, SettingEntry, sections
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings
from rl_sync.spelling import question

_COLUMNS = 100
_KINDS: dict[type, str] = {int: "whole number", float: "number", str: "text", bool: "true or false"}
_INTRODUCTION = """\
# All settings

Each can be changed on the command line, as in `--config.trainer.steps=50`, or in a config file. \
`python -m launcher settings PATTERN` searches this list. [using.md](using.md) explains settings \
by purpose.

This page is made from the source by `python -m launcher.commands.lists > docs/settings.md`."""


def execute(arguments: Arguments) -> int:
    """Prints the settings that match a pattern.

    Raises:
      ConfigError: no setting matches; the message names the nearest.
    """
    if "json" in arguments.flags:
        text(arguments.text)  # Raises an error if nothing matches.
        print(json.dumps(records(arguments.text), indent=1))
    else:
        print(text(arguments.text))
    return 0


def text(pattern: str = "") -> str:
    """Lists the settings whose name, meaning and choices together contain all words of a pattern.

    A word matches the beginning of a longer word. Case does not matter.

    Raises:
      ConfigError: no setting matches; the message names the nearest.
    """
    words = pattern.lower().split()
    parts = [_in_terminal(section) for section in _matching(words)]
    if not parts:
        names = [entry.name for section in sections(RunSettings) for entry in section.entries]
        meant = settings_meant("_".join(words), names)
        way_out = question(*meant) if meant else "without a pattern all are listed."
        raise ConfigError(f"No setting has {pattern!r} in its name or its meaning; {way_out}")
    return "\n\n".join(parts)


def records(pattern: str = "") -> list[dict[str, object]]:
    """Returns the settings that `text` lists, as records for scripts."""
    return [
        {
            "name": entry.name,
            "kind": entry.kind.__name__,
            "default": entry.default,
            "implied": entry.setting.implied,
            "choices": entry.setting.choices,
            "bounds": entry.setting.bounds,
            "unit": entry.setting.unit,
            "meaning": entry.setting.meaning,
        }
        for section in _matching(pattern.lower().split())
        for entry in section.entries
    ]


def page() -> str:
    """Returns the list as a page of Markdown."""
    return "\n\n".join([_INTRODUCTION, *map(_on_page, _matching([]))])


def _matching(words: list[str]) -> Iterator[Section]:
    """Yields the sections with settings that match all words, without their other settings."""
    for section in sections(RunSettings):
        entries = tuple(entry for entry in section.entries if _has(entry, words))
        if entries:
            yield section._replace(entries=entries)


def _has(entry: SettingEntry, words: list[str]) -> bool:
    rule = entry.setting
    return fits(" ".join([entry.name, rule.meaning, *rule.choices]), " ".join(words))


def _in_terminal(section: Section) -> str:
    lines = _wrapped(f"[{section.name}] {section.meaning}") if section.name else []
    for entry in section.entries:
        colon = ":" if entry.default is None else ""
        lines += _wrapped(f"{entry.name}: {_values(entry)}; default{colon} {_default(entry)}")
        lines += _wrapped(entry.setting.meaning, " " * 4)
    return "\n".join(lines)


def _wrapped(line: str, indent: str = "") -> list[str]:
    more = indent or " " * 8
    return textwrap.wrap(line, _COLUMNS, initial_indent=indent, subsequent_indent=more)


def _on_page(section: Section) -> str:
    lines = [f"## {section.name}", "", section.meaning, ""] if section.name else []
    lines += ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for entry in section.entries:
        default = _default(entry) if entry.default is None else f"`{_default(entry)}`"
        cells = [f"`{entry.name}`", default, _values(entry), entry.setting.meaning]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def _values(entry: SettingEntry) -> str:
    """The values that a setting takes, in words."""
    rule, kind = entry.setting, _KINDS[entry.kind]
    if rule.choices:
        return f"one of {', '.join(rule.choices)}"
    if rule.bounds:
        return f"{kind}, {rule.bounds}"
    return f"{kind} of {rule.unit}" if rule.unit else kind


def _default(entry: SettingEntry) -> str:
    if entry.default is None:
        return entry.setting.implied
    if entry.kind is bool:
        return str(entry.default).lower()
    return str(entry.default) if entry.default != "" else '""'


if __name__ == "__main__":
    print(page())
