"""Answers to the Tab key: what may stand at the end of an unfinished command line.

The scripts of the shells in `launcher/shells` ask this module in a process of its own at each Tab.
So it loads little, and keeps the names of settings in a file that is made anew when the source has
changed.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rl_sync.launcher import known
from rl_sync.launcher.command import CONFIG, MODULES, SCRIPT, Command, Flag, Kind
from rl_sync.launcher.commands import COMMANDS, DEFAULT

SHELLS = ("bash", "zsh", "fish")
_SETTING = "config."
_RUNS = "runs"


class Candidate(NamedTuple):
    """A way to go on: the whole last word, and what it means.

    A word that ends with one of `OPEN` is not finished.
    """

    text: str
    meaning: str = ""


OPEN = ("=", "/", ".", ",")


def answer(words: Sequence[str]) -> int:
    """Prints the candidates, a line each, with a tab before the meaning.

    Args:
      words: `--line` and the command line up to the cursor, or `--words` and its words, of which
        the last one is unfinished and may be empty.
    """
    kind, *rest = words or [""]
    given = _split(rest[0]) if kind == "--line" and rest else rest
    for one in candidates(_without_program(given)):
        print(f"{one.text}\t{one.meaning}" if one.meaning else one.text)
    return 0


def candidates(words: Sequence[str]) -> list[Candidate]:
    """Returns the ways to go on from an unfinished command line, without the program's name."""
    *before, last = words or [""]
    given = next((word for word in before if word in COMMANDS), None)
    command = COMMANDS[given or DEFAULT]
    flag = before[-1].lstrip("-") if before and re.fullmatch(r"--?[^=]+", before[-1]) else ""
    if _takes_value(command, flag) and not last.startswith("-"):
        found = _values(command, flag, last)
    elif match := re.fullmatch(r"(--?([^=]+)=)(.*)", last, re.DOTALL):
        head, name, value = match.groups()
        found = (
            Candidate(f"{head}{one.text}", one.meaning) for one in _values(command, name, value)
        )
    elif last.startswith("-"):
        found = _flags(command, last, is_first=given is None)
    else:
        found = _words(given, last)
    unique = {one.text: one for one in found if one.text.startswith(last)}
    return [*unique.values()]


def _takes_value(command: Command, name: str) -> bool:
    if name.startswith(_SETTING):
        return name.removeprefix(_SETTING) in known.settings()
    return name in command.flags and bool(command.flags[name].value)


def _words(given: str | None, last: str) -> Iterator[Candidate]:
    if given in (None, "help"):
        yield from (Candidate(name, one.summary) for name, one in COMMANDS.items())
    elif given == "completion":
        yield from map(Candidate, SHELLS)
    elif given == "settings":
        yield from (Candidate(name, one.meaning) for name, one in known.settings().items())
    else:
        yield from (Candidate(*one) for one in known.names(given or ""))


def _flags(command: Command, last: str, *, is_first: bool) -> Iterator[Candidate]:
    for name, flag in command.flags.items():
        yield Candidate(f"--{name}{'=' if flag.value else ''}", flag.meaning)
    yield Candidate("--help", "Explains the command." if not is_first else "Names all commands.")
    if is_first:
        yield Candidate("--version", "Prints the version.")
    if CONFIG not in command.flags:
        return
    typed = last.removeprefix(f"--{_SETTING}")
    if typed == last:
        yield Candidate(f"--{_SETTING}", "Changes a setting.")
        return
    for name, one in known.settings().items():
        if name.startswith(typed):
            section = re.match(r"[^.]*\.", name[len(typed) :])
            whole = f"{typed}{section[0]}" if section else f"{name}="
            yield Candidate(f"--{_SETTING}{whole}", "" if section else one.meaning)


def _values(command: Command, name: str, last: str) -> Iterable[Candidate]:
    if name.startswith(_SETTING):
        return _values_of_setting(name.removeprefix(_SETTING), last)
    flag = command.flags.get(name)
    return [] if flag is None else _values_of_flag(flag, last)


def _values_of_setting(name: str, last: str) -> Iterator[Candidate]:
    one = known.settings().get(name)
    if one is None:
        return
    yield from map(Candidate, one.choices)
    chosen = known.chosen_by(f"--{_SETTING}{name}=")
    yield from (Candidate(value, meaning) for value, meaning in chosen if value not in one.choices)
    if one.is_path:
        yield from _paths("run" if name == "workdir" else "file", last)


def _values_of_flag(flag: Flag, last: str) -> Iterator[Candidate]:
    yield from map(Candidate, flag.choices)
    if flag.kind == "config":
        yield from (Candidate(*one) for one in known.names("configs"))
    if flag.kind:
        done, comma, rest = last.rpartition(",")
        for one in _paths(flag.kind, rest):
            yield Candidate(f"{done}{comma}{one.text}", one.meaning)


def _paths(kind: Kind, typed: str) -> Iterator[Candidate]:
    """Yields the paths that begin with some text: directories, and files if they may be meant."""
    shown, slash, begin = typed.rpartition("/")
    folder = Path(os.path.expanduser(shown + slash) or ".")
    if kind == "run" and not slash and (Path(_RUNS)).is_dir():
        yield from (
            Candidate(f"{_RUNS}/{one.name}") for one in _inside(Path(_RUNS)) if _is_run(one)
        )
    for one in _inside(folder):
        if one.name.startswith(".") and not begin.startswith("."):
            continue
        path = f"{shown}{slash}{one.name}"
        if one.is_dir():
            yield Candidate(path if kind == "run" and _is_run(one) else f"{path}/")
        elif kind == "file" or (kind == "config" and one.suffix == ".py"):
            yield Candidate(path)


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _is_run(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "logs").is_dir()


def _split(line: str) -> list[str]:
    """Splits a command line as a shell does; its last word may lack a closing quotation mark."""
    if re.search(r"(?<!\\)(\\\\)*\\$", line):
        line = line[:-1]  # What it stands before is not typed yet.
    for closing in ("", "'", '"'):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        return [*words, ""] if not closing and line[-1:].isspace() else words
    return [*line.split()]


def _without_program(words: Sequence[str]) -> list[str]:
    """Returns the words after `rl-sync`, or `python -m` and a name of the program."""
    for at, word in enumerate(words):
        if os.path.basename(word) == SCRIPT:
            return [*words[at + 1 :]]
        if word == "-m" and words[at + 1 : at + 2] in [[name] for name in MODULES]:
            return [*words[at + 2 :]]
    return [*words]
