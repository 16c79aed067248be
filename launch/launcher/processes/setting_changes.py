"""Changes of settings between a run and the command that resumes it."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from rl_sync.setting import Setting, flat, sections
from rl_sync.settings.records import ConfigValues
from rl_sync.settings.run_settings import RunSettings

# Not reported: too many, and without influence on the results.
_UNTOLD = ("name", "workdir", "launch", "master", "replay.port")
# The defaults of other settings depend on these.
_LEADING = ("sync.mode", "algorithm.name")
_NAMED = 4


class Change(NamedTuple):
    """A setting whose value has changed."""

    setting: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.setting}: {_said(self.before)} there, {_said(self.now)} here"

    def is_one_of(self, settings: Sequence[str]) -> bool:
        """Says whether these settings and sections contain the setting."""
        return any(self.setting == one or self.setting.startswith(f"{one}.") for one in settings)

    def is_free(self, after_sft: bool) -> bool:
        """Says whether a run may resume with this change.

        Args:
          after_sft: whether SFT is over.
        """
        free = _settings()[self.setting].free
        return free == "always" or (after_sft and free == "after_sft")

    @property
    def is_told(self) -> bool:
        """Says whether the change is reported to the user."""
        return not self.is_one_of(_UNTOLD)


def changes_between(before: ConfigValues, now: ConfigValues) -> list[Change]:
    """Lists the settings that differ; settings on which other defaults depend come first.

    A setting that only one of the configs has is ignored: the configs are of different versions.
    """
    old, new = dict(flat(before)), dict(flat(now))
    found = [
        Change(name, old[name], new[name])
        for name in new
        if name in old and json.dumps(old[name]) != json.dumps(new[name])
    ]
    ranks = {name: rank for rank, name in enumerate(_LEADING)}
    return sorted(found, key=lambda change: ranks.get(change.setting, len(ranks)))


def describe(changes: Sequence[Change]) -> str:
    """Describes the first change with both values, and names some others."""
    first, *others = changes
    if not others:
        return str(first)
    names = ", ".join(change.setting for change in others[:_NAMED])
    more = ", …" if len(others) > _NAMED else ""
    return f"{first} (and {len(others)} more: {names}{more})"


@functools.cache
def _settings() -> dict[str, Setting]:
    """Returns the descriptions of all settings, by their names."""
    return {entry.name: entry.setting for part in sections(RunSettings) for entry in part.entries}


def _said(value: Any) -> str:
    return "not set" if value is None else repr(value)
