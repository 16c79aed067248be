"""The parser of the command line."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict, config_flags

from rl_sync.launcher import config_file
from rl_sync.launcher.command import CONFIG, Arguments, program
from rl_sync.launcher.commands import COMMANDS, DEFAULT, FLAGS
from rl_sync.launcher.suggestions import did_you_mean, setting_names
from rl_sync.settings.records import ConfigError
from rl_sync.spelling import hint, nearest, question

_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
_SETTING = re.compile(r"--?(?:no)?config\.([^=]*)(=.*)?", re.DOTALL)


def parse(words: Sequence[str]) -> Arguments:
    """Reads a command line, without the program's name.

    Raises:
      ConfigError: it is not valid; one line says why, and what was probably meant.
    """
    path, rest = _split_config(words)
    config = _of_run(rest) if path is None else config_file.load(path)
    given = [match for match in map(_SETTING.fullmatch, rest) if match]
    if config is not None:
        _check_names(given, config)
    elif given:
        raise ConfigError(f"{given[0][0]} changes a setting of a config: {_GIVE_CONFIG}")
    values = _define(config, rest)
    try:
        commands = values([program(), *rest])[1:]
    except flags.UnrecognizedFlagError as error:
        raise ConfigError(_unknown_flag(rest, error.flagname, config)) from error
    except flags.Error as error:
        raise ConfigError(_refused(values, error)) from error
    command, after = _command(commands or [DEFAULT])
    used = {n: _text(values[n].value) for n in FLAGS if n != CONFIG and values[n].present}
    if path is not None:
        used = {CONFIG: path, **used}
    _check_used(command, used)
    if COMMANDS[command].needs_config and path is None:
        raise ConfigError(_GIVE_CONFIG)
    used.pop(CONFIG, None)
    takes = COMMANDS[command].flags
    return Arguments(
        command,
        config,
        {n: os.path.expanduser(v) if takes[n].kind else v for n, v in used.items()},
        after,
    )


def changed(config: ConfigDict, words: Sequence[str]) -> ConfigDict:
    """Returns a copy of a config with settings as the command line writes them.

    Args:
      words: such as `--config.seed=1`.

    Raises:
      ConfigError: there is no such setting, or it does not take the value.
    """
    copied = copy.deepcopy(config)
    given = [match for match in map(_SETTING.fullmatch, words) if match]
    assert len(given) == len(words), words
    _check_names(given, copied)
    values = _define(copied, words)
    try:
        values([program(), *words])
    except flags.Error as error:
        raise ConfigError(_refused(values, error)) from error
    return copied


def _text(value: object) -> str:
    return "\n".join(value) if isinstance(value, list) else str(value)


_GIVE_CONFIG = (
    "Give a config, such as --config=arithmetic or a file of your own; --help tells more."
)


def _of_run(words: Sequence[str]) -> ConfigDict | None:
    """Returns the config of the run in `--workdir`, where a command takes it if none is given."""
    named = [match[1] for match in map(re.compile(r"--?workdir=(.+)").fullmatch, words) if match]
    users = [name for name, command in COMMANDS.items() if command.own_config]
    if not named or not any(user in words for user in users):
        return None
    return config_file.of_run(Path(os.path.expanduser(named[-1])))


def _command(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The command, and the words after it."""
    first, *after = words
    if first in COMMANDS and COMMANDS[first].words:
        return first, tuple(after)
    wrong = next((word for word in words if word not in COMMANDS), None)
    if wrong is not None and (wrong.endswith(".py") or os.path.exists(os.path.expanduser(wrong))):
        flag = "--workdir" if os.path.isdir(os.path.expanduser(wrong)) else "--config"
        raise ConfigError(f"{wrong!r} needs the name of a flag: {question(f'{flag}={wrong}')}")
    if wrong is not None:
        raise ConfigError(
            f"{wrong!r} is not a command, which is one of {', '.join(COMMANDS)} ({DEFAULT} if left"
            f" out){hint(wrong, COMMANDS)}"
        )
    if len(words) > 1:
        raise ConfigError(f"{' and '.join(words)} are {len(words)} commands: give one at a time.")
    return first, ()


def _split_config(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Returns the config's path, None if there is none, and the other words."""
    paths: list[str] = []
    rest = []
    remaining = iter(words)
    for word in remaining:
        match = re.fullmatch(r"--?config(?:=(.*))?", word, re.DOTALL)
        if match is None:
            rest.append(word)
            continue
        value = next(remaining, "") if match[1] is None else match[1]
        paths.append(value)
    if len(paths) > 1:
        raise ConfigError(f"--config is given {len(paths)} times ({', '.join(paths)}): give one.")
    return (paths[0] if paths else None), rest


def _define(config: ConfigDict | None, words: Sequence[str]) -> flags.FlagValues:
    """Defines the flags of a command line."""
    values = flags.FlagValues()
    for name, flag in FLAGS.items():
        if not flag.value:
            flags.DEFINE_bool(name, False, flag.meaning, flag_values=values)
        elif flag.many:
            flags.DEFINE_multi_string(name, None, flag.meaning, flag_values=values)
        elif name != CONFIG:
            flags.DEFINE_string(name, None, flag.meaning, flag_values=values)
    if config is None:
        return values
    try:
        config_flags.DEFINE_config_dict(
            CONFIG, config, flag_values=values, lock_config=True, sys_argv=[program(), *words]
        )
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"The config cannot be used: {_first_line(error)}") from error
    return values


def _check_names(given: Sequence[re.Match[str]], config: ConfigDict) -> None:
    """Refuses settings that the config does not have."""
    known = list(setting_names(config.to_dict()))
    for match in given:
        name, value = match[1], match[2] or ""
        if name in known:
            continue
        inside = [path for path in known if path.startswith(f"{name}.")]
        if inside:
            raise ConfigError(
                f"--config.{name} is a section, not a setting: it has"
                f" {', '.join(f'--config.{path}' for path in inside[:6])}"
                + (", …" if len(inside) > 6 else ".")
            )
        meant = did_you_mean(name, known, value) or f"`{program()} settings` lists all there are."
        raise ConfigError(f"Unknown setting: --config.{name}; {meant}")


def _check_used(command: str, used: Mapping[str, str]) -> None:
    """Refuses flags that a command does not use, instead of ignoring them."""
    takes = COMMANDS[command].flags
    for name, value in used.items():
        if name in takes:
            continue
        users = _listed([n for n, one in COMMANDS.items() if name in one.flags])
        own = f"{command} takes {COMMANDS[command].words or ', '.join(f'--{f}' for f in takes)}."
        if CONFIG in takes:
            own = did_you_mean(name, list(_all_settings()), f"={value}") or own
        raise ConfigError(f"--{name}={value} is for {users}, not for {command}; {own}")


def _listed(names: Sequence[str]) -> str:
    """Writes names as `a`, `a and b`, or `a, b and c`."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _unknown_flag(words: Sequence[str], name: str, config: ConfigDict | None) -> str:
    word = next((w for w in words if re.match(rf"--?{re.escape(name)}(=|$)", w)), f"--{name}")
    _, equals, value = word.partition("=")
    near = nearest(name, FLAGS)
    known = _all_settings() if config is None else setting_names(config.to_dict())
    meant = did_you_mean(name, list(known), equals + value)
    if near and (meant is None or config is None):
        meant = question(f"--{near}{equals}{value}")
    return f"Unknown flag: {word}; {meant or '--help names all there are.'}"


def _refused(values: flags.FlagValues, error: flags.Error) -> str:
    """Returns the message about a value that a flag does not take."""
    text = _first_line(error)
    match = re.match(r"flag (--[^=]+)=(.*?): ", text)
    if match is None:
        return f"{text.rstrip('.')}. {_GIVE_VALUE}" if "issing value" in text else text
    flag, value = match[1], match[2]
    kind = values[flag.removeprefix("--")].parser.flag_type()
    return f"{flag}={value} must be {_KINDS.get(kind, kind)}."


_GIVE_VALUE = "Write it as --NAME=VALUE."


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _all_settings() -> Iterator[str]:
    from rl_sync.configs import base

    return setting_names(base.get_config().to_dict())
