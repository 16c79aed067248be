"""Shell completion: the ways to complete an unfinished command line at the Tab key.

The shells' scripts in `launcher/shells` start this module in a new process at each Tab. click finds
the unfinished flag or word, and asks its type for values. To be quick, this imports little: the
names of settings come from a file (`known`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from rl_sync.launcher import known
from rl_sync.settings.records import ConfigError
from rl_sync.spelling import hint

if TYPE_CHECKING:
    from rl_sync.launcher.command import Arguments

Item = CompletionItem[str]
SHELLS = ("bash", "zsh", "fish")
SETTING = "--config."
SCRIPT = "rl-sync"
"""The console script of an installed package."""

MODULES = ("launcher", "rl_sync", "rl_sync.launcher")
"""Modules that `python -m` runs as this program; the first exists only in the clone."""

NAMED = "rl_sync.named"
"""Key of a context's `meta`: whether the command line names its command."""

_RUNS = "runs"
_CURSOR = "\0"


def execute(arguments: Arguments) -> int:
    """Prints the script that makes a shell complete command lines.

    Raises:
      ConfigError: no shell is named, or there is no script for it.
    """
    shell = arguments.text
    if shell not in SHELLS:
        named = f"There is no script for the shell {shell!r}" if shell else "Name a shell"
        end = hint(shell, SHELLS) if shell else "."
        raise ConfigError(f"{named}: completion takes {', '.join(SHELLS)}{end}")
    print(Path(__file__).with_name("shells").joinpath(f"rl_sync.{shell}").read_text(), end="")
    return 0


class Tab(ShellComplete):
    """Completes the command line that a shell passes on.

    A completion replaces the whole last word. If it ends with `=`, `/`, `.` or `,`, the user
    continues the word.
    """

    def __init__(self, cli: click.Command, words: Sequence[str]) -> None:
        super().__init__(cli, {}, SCRIPT, "")
        self._words = words

    def get_completion_args(self) -> tuple[list[str], str]:
        """Returns the words before the unfinished one, and the unfinished one, which may be empty.

        A shell passes `--line` and the command line up to the cursor, or `--words` and its words.
        """
        kind, *given = self._words or [""]
        if kind == "--line" and given:
            given = split_arg_string(given[0] + _CURSOR)
            given[-1] = given[-1].removesuffix(_CURSOR)
        *before, last = _without_program(given) or [""]
        return before, last

    def get_completions(self, args: list[str], incomplete: str) -> list[Item]:
        """Returns the completions of an unfinished word that follows others."""
        match = re.fullmatch(r"(-[^=]*=)(.*)", incomplete, re.DOTALL)
        head, value = match.groups() if match else ("", incomplete)
        flag = head[:-1] if head else args[-1] if args and incomplete[:1] != "-" else ""
        if flag.startswith(SETTING):
            found = [*_values_of(flag.removeprefix(SETTING), value)]
        else:
            found = super().get_completions([*args], incomplete)
        items = [Item(f"{head}{one.value}", help=one.help) for one in found]
        return [*{one.value: one for one in items if one.value.startswith(incomplete)}.values()]

    def format_completion(self, item: Item) -> str:
        """Returns the completion and, after a tab, its meaning."""
        return f"{item.value}\t{item.help}" if item.help else item.value


def _without_program(words: Sequence[str]) -> list[str]:
    """Returns the words after the program: `rl-sync`, or `python -m` and one of `MODULES`."""
    for at, word in enumerate(words):
        if os.path.basename(word) == SCRIPT:
            return [*words[at + 1 :]]
        if word == "-m" and words[at + 1 : at + 2] in [[name] for name in MODULES]:
            return [*words[at + 2 :]]
    return [*words]


def flags_after(options: Mapping[str, click.Option], typed: str) -> Iterator[Item]:
    """Yields the flags of a command and, if it takes a config, settings up to the next dot."""
    for name, option in options.items():
        yield Item(f"--{name}{'' if option.is_flag else '='}", help=option.help)
    yield Item("--help", help="Explains the command.")
    if "config" not in options:
        return
    section = typed.removeprefix(SETTING)
    if section == typed:
        yield Item(SETTING, help="Changes a setting.")
        return
    for name, one in known.settings().items():
        if name.startswith(section):
            inner = re.match(r"[^.]*\.", name[len(section) :])
            whole = f"{section}{inner[0]}" if inner else f"{name}="
            yield Item(f"{SETTING}{whole}", help=None if inner else one.meaning)


def words_after(ctx: click.Context, _: click.Parameter, typed: str) -> list[Item]:
    """Returns the words that a command takes; all commands if none is named yet."""
    name, root = ctx.command.name, ctx.find_root().command
    assert isinstance(root, click.Group)
    if name == "help" or not ctx.meta[NAMED]:
        return [Item(name, help=one.short_help) for name, one in root.commands.items()]
    if name == "completion":
        return [*map(Item, SHELLS)]
    if name == "settings":
        return [Item(name, help=one.meaning) for name, one in known.settings().items()]
    return [Item(value, help=meaning) for value, meaning in known.names(name or "")]


def _values_of(setting: str, typed: str) -> Iterator[Item]:
    one = known.settings().get(setting)
    if one is None:
        return
    yield from map(Item, one.choices)
    chosen = known.chosen_by(f"{SETTING}{setting}=")
    yield from (Item(value, help=text) for value, text in chosen if value not in one.choices)
    if one.is_path:
        yield from _paths("run" if setting == "workdir" else "file", typed)


Kind = Literal["config", "directory", "file", "run"]
"""Kinds of paths that a flag takes: a config, a directory, a file, or a run's work directory."""


class PathOf(click.ParamType[str]):
    """A path of some kind, or several paths separated by commas."""

    name = "path"

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the path with the user's home directory in place of `~`."""
        if not value and param is not None and param.required:
            raise click.MissingParameter(ctx=ctx, param=param)
        return os.path.expanduser(value)

    def shell_complete(self, ctx: click.Context, param: object, incomplete: str) -> list[Item]:
        """Returns the paths that begin with a text, and the names of configs."""
        names = known.names("configs") if self._kind == "config" else ()
        done, comma, rest = incomplete.rpartition(",")
        paths = (Item(f"{done}{comma}{one.value}") for one in _paths(self._kind, rest))
        return [*(Item(name, help=meaning) for name, meaning in names), *paths]


def _paths(kind: Kind, typed: str) -> Iterator[Item]:
    """Yields the paths that begin with a text: directories and, if the kind has them, files."""
    shown, slash, begin = typed.rpartition("/")
    folder = Path(os.path.expanduser(shown + slash) or ".")
    if kind == "run" and not slash and (Path(_RUNS)).is_dir():
        yield from (Item(f"{_RUNS}/{one.name}") for one in _inside(Path(_RUNS)) if _is_run(one))
    for one in _inside(folder):
        if one.name.startswith(".") and not begin.startswith("."):
            continue
        path = f"{shown}{slash}{one.name}"
        if one.is_dir():
            yield Item(path if kind == "run" and _is_run(one) else f"{path}/")
        elif kind == "file" or (kind == "config" and one.suffix == ".py"):
            yield Item(path)


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _is_run(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "logs").is_dir()
