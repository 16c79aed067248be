"""A command of the launcher, its flags, and what it is given."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from ml_collections import ConfigDict

CONFIG = "config"

Kind = Literal["", "config", "directory", "file", "run"]
"""Paths that a flag takes: a config, a directory, a file, or a run's work directory."""


class Flag(NamedTuple):
    """A flag of a command.

    Attributes:
      value: the name of its value in the help; empty for a flag that takes none.
      meaning: one sentence or two.
      default: what holds without it, in words.
      kind: the paths that it takes; empty if it takes none.
      choices: the values that are offered; there may be others.
      needed: whether the command does nothing without it.
      many: whether it may be given more than once; its values then are the lines of one text.
    """

    value: str
    meaning: str
    default: str = ""
    kind: Kind = ""
    choices: tuple[str, ...] = ()
    needed: bool = False
    many: bool = False


class Command(NamedTuple):
    """One thing that the launcher does.

    Attributes:
      group: the heading that it stands under in the help.
      module: it has the function `execute`, from `Arguments` to an exit status; it is imported when
        the command is given.
      summary: one line.
      about: two to five sentences.
      flags: those that it takes, by name; with `config` also all settings.
      examples: its arguments, and what they do.
      page: of the documentation.
      words: what may stand after it, such as a pattern; empty for nothing.
      own_config: whether it can do without `--config`, since it knows where to find one.
      statuses: the meanings of exit statuses that only this command has.
    """

    group: str
    module: str
    summary: str
    about: str
    flags: Mapping[str, Flag]
    examples: Mapping[str, str]
    page: str
    words: str = ""
    own_config: bool = False
    statuses: Mapping[int, str] = {}

    @property
    def needs_config(self) -> bool:
        """True where the command does nothing without `--config`."""
        return CONFIG in self.flags and not self.own_config


class Arguments(NamedTuple):
    """A command line that makes sense.

    Attributes:
      command: a key of `COMMANDS`.
      config: the config with the settings that were given; None where there is none.
      flags: the values of the other flags that were given, paths with their home directory; `True`
        or `False` for those that take none.
      words: those after the command.
    """

    command: str
    config: ConfigDict | None
    flags: Mapping[str, str]
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """The words with spaces between them."""
        return " ".join(self.words)


def program() -> str:
    """Returns the words that start this program: those of this process, or the console script."""
    started = getattr(sys.modules["__main__"], "__spec__", None)  # Only by `python -m`.
    module = "" if started is None else started.name.removesuffix(".__main__")
    return f"python -m {module}" if module in MODULES else SCRIPT


SCRIPT = "rl-sync"
"""The console script of an installed package."""

MODULES = ("launcher", "rl_sync", "rl_sync.launcher")
"""Modules that are the same program by `python -m`; the first is there in the clone alone."""
