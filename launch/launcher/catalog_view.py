"""Lists of what there is to choose, on a terminal or as JSON."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence

from rl_sync.launcher.catalogs import CATALOGS, Catalog, Entry
from rl_sync.launcher.command import Arguments, program
from rl_sync.launcher.terminal import Page
from rl_sync.settings.records import ConfigError
from rl_sync.spelling import hint

_EXAMPLE = "plan --config=base"


def execute(arguments: Arguments) -> int:
    """Prints the entries of a list that a pattern fits, the only one with all that is known of it.

    Raises:
      ConfigError: there are none; names the nearest.
    """
    catalog = CATALOGS[arguments.command]
    found, only = find(arguments.command, catalog, arguments.text)
    if "json" in arguments.flags:
        print(json.dumps([_record(one, only is not None) for one in found], indent=1))
    elif only is not None:
        _page_of_one(catalog, only).show()
    else:
        _page_of_all(catalog, found).show()
    return 0


def find(command: str, catalog: Catalog, pattern: str) -> tuple[list[Entry], Entry | None]:
    """Returns the entries that have all words of a pattern, and the one that alone is meant.

    That is one whose name the pattern is, or the only one that it fits.

    Raises:
      ConfigError: there are none; names the nearest.
    """
    entries = list(catalog.read())
    named = [one for one in entries if one.name == pattern]
    found = named or [one for one in entries if fits(f"{one.name} {one.meaning}", pattern)]
    if not found:
        names = [one.name for one in entries]
        raise ConfigError(
            f"No {catalog.noun} has {pattern!r} in its name or its text; without a pattern"
            f" `{program()} {command}` lists all{hint(pattern, names)}"
        )
    return found, found[0] if len(found) == 1 else None


def fits(text: str, pattern: str) -> bool:
    """Says whether each word of a pattern begins a word of a text; capitals do not matter."""
    words = f"{text} {text.replace('_', ' ')}".lower()
    return all(
        re.search(rf"(?<![a-z0-9]){re.escape(word)}", words) for word in pattern.lower().split()
    )


def _page_of_all(catalog: Catalog, entries: Sequence[Entry]) -> Page:
    page = Page()
    for heading, group in itertools.groupby(entries, lambda one: one.of):
        with page.section(heading) if heading else page.indentation():
            page.write_dl((one.name, one.meaning) for one in group)
    page.write_paragraph()
    page.write_text(f"To choose one: {catalog.choose}" if entries[0].choose else catalog.choose)
    page.write_text(f"More: {catalog.page}, or the same command with the name of one.")
    return page


def _page_of_one(catalog: Catalog, entry: Entry) -> Page:
    page = Page()
    page.write_heading(entry.name)
    page.write_text(entry.meaning)
    page.write_paragraph()
    with page.indentation():
        facts = entry.facts.items()
        page.write_dl((name, fact) for name, fact in facts if fact and "\n" not in fact)
    for fact in entry.facts.values():
        if "\n" in fact:
            page.write(f"\n{fact}\n")
    settings = entry.settings()
    if settings:
        with page.section("Settings" if any("." in name for name in settings) else "Options"):
            page.write_dl(settings.items())
    if entry.choose:
        config = "" if entry.choose.startswith("--config=") else f"{_EXAMPLE} "
        with page.section("Example"):
            page.write_command(f"{program()} {config or 'plan '}{entry.choose}")
    page.write_text(f"To choose one: {catalog.choose}" if entry.choose else catalog.choose)
    page.write_text(f"More: {catalog.page}")
    return page


def _record(entry: Entry, is_only: bool) -> dict[str, object]:
    record: dict[str, object] = {"name": entry.name, "meaning": entry.meaning}
    record |= {"choose": entry.choose, **entry.facts}
    return record | {"settings": entry.settings()} if is_only else record
