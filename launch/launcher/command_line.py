"""The parser of the command line: click reads commands and flags, ml_collections reads settings."""

from __future__ import annotations

import copy
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from absl import flags
from ml_collections import ConfigDict, config_flags

from rl_sync.launcher import config_file, mistakes
from rl_sync.launcher.command import CONFIG, Arguments, asked, program
from rl_sync.launcher.command_table import PROGRAM
from rl_sync.launcher.terminal import in_color
from rl_sync.settings.records import ConfigError

_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
_SETTING = re.compile(r"--?(?:no)?config\.([^=]*)(=.*)?", re.DOTALL)


def parse(words: Sequence[str]) -> Arguments:
    """Reads a command line, without the program's name.

    Raises:
      ConfigError: it is not valid; a message of one line says why, and suggests a correction.
      click.exceptions.Exit: it asked for help or the version, which is printed.
    """
    path, rest = _split_config(words)
    config = None
    named = [] if path is None else [f"--{CONFIG}={path}"]
    settings = (*named, *_settings(rest))
    if not asked(words):
        config = _of_run(rest) if path is None else config_file.load(path)
        rest = _changed(config, rest)
    rest = [*rest, *named]
    try:
        with PROGRAM.make_context(program(), rest, obj=config, color=in_color()) as context:
            arguments: Arguments = PROGRAM.invoke(context)
            return arguments._replace(settings=settings)
    except click.UsageError as error:
        raise ConfigError(mistakes.explained(error, words)) from error


def changed(config: ConfigDict, words: Sequence[str]) -> ConfigDict:
    """Returns a copy of a config with settings changed as on the command line.

    Args:
      words: the changes, such as `--config.seed=1`.

    Raises:
      ConfigError: there is no such setting, or it does not take the value.
    """
    copied = copy.deepcopy(config)
    rest = _changed(copied, words)
    assert not rest, rest
    return copied


def _changed(config: ConfigDict | None, words: Sequence[str]) -> list[str]:
    """Applies the settings of a command line to a config; returns the other words."""
    given = [match for match in map(_SETTING.fullmatch, words) if match]
    if config is None:
        if given:
            raise ConfigError(mistakes.without_config(given[0][0]))
        return [*words]
    mistakes.check_names(given, config.to_dict())
    values, command_line = flags.FlagValues(), [program(), *words]
    try:
        config_flags.DEFINE_config_dict(
            CONFIG, config, flag_values=values, lock_config=True, sys_argv=command_line
        )
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"The config cannot be used: {_first_line(error)}") from error
    try:
        return values(command_line, known_only=True)[1:]
    except flags.Error as error:
        raise ConfigError(_refused(values, error)) from error


def _of_run(words: Sequence[str]) -> ConfigDict | None:
    """Returns the config of the run in `--workdir`, if a command uses it in place of `--config`."""
    named = re.findall(r"(?:^|\0)--workdir[=\0]([^\0]+)", "\0".join(words))
    users = {name for name, command in PROGRAM.commands.items() if command.own_config}
    if not named or users.isdisjoint(words):
        return None
    return config_file.of_run(Path(os.path.expanduser(named[-1])))


def _split_config(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Returns the config's path (None if there is none) and the other words."""
    paths: list[str] = []
    rest = []
    remaining = iter(words)
    for word in remaining:
        match = re.fullmatch(r"--?config(?:=(.*))?", word, re.DOTALL)
        if match is None:
            rest.append(word)
        else:
            paths.append(next(remaining, "") if match[1] is None else match[1])
    if len(paths) > 1:
        raise ConfigError(f"--config is given {len(paths)} times ({', '.join(paths)}): give one.")
    return (paths[0] if paths else None), rest


def _settings(words: Sequence[str]) -> Iterator[str]:
    """Yields the words that change settings, each with its value behind an equals sign."""
    for word, after in itertools.pairwise([*words, "--"]):
        match = _SETTING.fullmatch(word)
        if match is not None:
            apart = match[2] is None and not after.startswith("-")
            yield f"{word}={after}" if apart else word


def _refused(values: flags.FlagValues, error: flags.Error) -> str:
    """Returns the message about a value that a setting does not take."""
    text = _first_line(error)
    match = re.match(r"flag (--[^=]+)=(.*?): ", text)
    if match is None:
        return f"{text.rstrip('.')}. {mistakes.GIVE_VALUE}" if "issing value" in text else text
    flag, value = match[1], match[2]
    kind = values[flag.removeprefix("--")].parser.flag_type()
    return f"{flag}={value} must be {_KINDS.get(kind, kind)}."


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
