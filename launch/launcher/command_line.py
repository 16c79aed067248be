"""The command line: the commands, their flags, and its parser."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

import rl_sync
from launcher import config_file
from launcher.suggestions import did_you_mean, setting_names
from rl_sync.settings.records import ConfigError
from rl_sync.spelling import hint, nearest, question

CONFIG = "config"
DEFAULT = "run"


class Command(NamedTuple):
    """One thing that the launcher does.

    Attributes:
      summary: for the help.
      flags: those that it takes; with `config` also all settings.
      example: its arguments.
      words: what may stand after it, such as a pattern; empty for nothing.
    """

    summary: str
    flags: tuple[str, ...]
    example: str
    words: str = ""


COMMANDS = {
    "run": Command(
        "Trains; the word may be left out.",
        (CONFIG,),
        "--config=configs/arithmetic.py --config.sync.mode=asynchronous",
    ),
    "plan": Command(
        "Prints what a run would do and the memory that it takes; starts nothing.",
        (CONFIG, "compile", "find", "workdir"),
        "--config=configs/arithmetic.py --config.sync.mode=synchronous",
    ),
    "timeline": Command(
        "Draws who did what when in a run, also while it runs.",
        ("workdir", "out", "steps"),
        "--workdir=runs/… --steps=1:8",
    ),
    "rollouts": Command(
        "Shows what the policy wrote, and how it was judged, also while it runs.",
        ("workdir", "step", "prompt", "lease", "reward", "grep", "sort", "limit", "json"),
        "--workdir=runs/… --step=12 --sort=reward --grep='wait|hmm'",
    ),
    "page": Command(
        "Serves a page on runs: curves, rollouts, the timeline, live or later. It only reads.",
        ("workdir", "host", "port"),
        "--workdir=runs/…",
    ),
    "eval": Command(
        "Measures a policy on held-out problems: a run's snapshot, or a checkpoint.",
        (CONFIG, "workdir", "model", "step", "out"),
        "--workdir=runs/… --step=best --config.evaluation.samples=8",
    ),
    "export": Command(
        "Writes a run's policy as a checkpoint that transformers loads.",
        ("workdir", "to", "dtype", "step"),
        "--workdir=runs/… --to=DIRECTORY --dtype=bfloat16",
    ),
    "reward": Command(
        "Serves the config's reward to runs, here or elsewhere.",
        (CONFIG, "host", "port", "secret-path"),
        "--config=configs/arithmetic.py --port=8100 --secret-path=~/reward.secret",
    ),
    "settings": Command(
        "Lists all settings and their meanings, or those that a PATTERN fits.",
        (),
        "learning rate",
        words="a PATTERN",
    ),
}
FLAGS = {
    CONFIG: ("FILE", "A config file; configs/ has some. run, plan, eval, reward."),
    "workdir": (
        "DIRECTORY",
        "The work directory of a run, whose times plan forecasts from; of page several, with commas"
        " between them. timeline, rollouts, page, eval, export, plan.",
    ),
    "out": (
        "PATH",
        "The directory of the pictures, the work directory if not set; or the file of an"
        " evaluation, evaluation.json if not set. timeline, eval.",
    ),
    "model": ("DIRECTORY", "A checkpoint, as model.path takes it. eval."),
    "step": (
        "STEP",
        "The step of a snapshot, or best; the newest if not set. eval, export. A trainer step, or"
        " FIRST:LAST. rollouts.",
    ),
    "prompt": ("ID", "The number of a problem, whose completions are shown. rollouts."),
    "lease": ("ID", "The lease of a group, whose completions are shown. rollouts."),
    "reward": ("LEAST:GREATEST", "Bounds of the reward, such as 0:0.5, 1: or :0. rollouts."),
    "grep": ("PATTERN", "A regular expression, found in a prompt or a completion. rollouts."),
    "sort": (
        "FIELD",
        "The order: step, reward, advantage, tokens, staleness or logprob; with a - in front from"
        " the greatest on. rollouts.",
    ),
    "limit": ("N", "The most lines of a table, or completions. rollouts."),
    "json": ("", "Prints all records that fit as JSON lines. rollouts."),
    "steps": ("FIRST:LAST", "The trainer steps to draw, such as 3:8, 3: or all. timeline."),
    "to": ("DIRECTORY", "A new directory for the checkpoint. export."),
    "dtype": (
        "DTYPE",
        "What parameters are stored as: float32, bfloat16 or float16; as imported, or float32, if"
        " not set. export.",
    ),
    "compile": (
        "TARGET",
        "Accelerators to compile the run's programs for, such as v5e:4x4 or h100:8; none has to be"
        " here. plan.",
    ),
    "find": (
        "TARGET",
        "Accelerators to propose meshes and batch shapes for, as --compile names them. plan.",
    ),
    "host": (
        "ADDRESS",
        "The address to serve at; only this machine's own if not set. page, reward.",
    ),
    "port": ("PORT", "The port to serve at; any free one if not set. page, reward."),
    "secret-path": (
        "FILE",
        "The secret that the runs share, made if there is none; reward.secret_path if not set."
        " reward.",
    ),
}
_PATHS = ("workdir", "out", "to", "model", "secret-path")
_PROGRAM = "python -m launcher"
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
_SETTING = re.compile(r"--?(?:no)?config\.([^=]*)(=.*)?", re.DOTALL)


class Arguments(NamedTuple):
    """A command line that makes sense.

    Attributes:
      command: a key of `COMMANDS`.
      config: the config with the settings that were given; None where there is none.
      flags: the values of the other flags that were given, paths with their home directory; `True`
        or `False` for those that take none.
      words: those after the command, with spaces between them.
    """

    command: str
    config: ConfigDict | None
    flags: Mapping[str, str]
    words: str


def information(words: Sequence[str]) -> str | None:
    """Returns the text for --help or --version; None if neither is given."""
    if any(word in ("-h", "-help", "--help", "--helpfull") for word in words) or list(words) == [
        "help"
    ]:
        return help_text()
    if any(word in ("-version", "--version") for word in words):
        return f"rl_sync {rl_sync.__version__}"
    return None


def help_text() -> str:
    """Returns the help: all commands and flags, with examples."""
    lines = [f"usage: {_PROGRAM} [COMMAND] [FLAGS]", "", "commands:"]
    lines += [f"  {name:<10}{command.summary}" for name, command in COMMANDS.items()]
    lines += ["", "flags:"]
    entries = {f"--{name}={value}".rstrip("="): text for name, (value, text) in FLAGS.items()}
    entries["--config.NAME=VALUE"] = (
        "Changes a setting; `settings` lists them all. run, plan, eval, reward."
    )
    entries["-h, --help"], entries["--version"] = "Prints this.", "Prints the version."
    for flag, text in entries.items():
        lines += textwrap.wrap(text, 96, initial_indent=f"  {flag:<22}", subsequent_indent=" " * 24)
    lines += ["", "examples:"]
    lines += [f"  {_PROGRAM} {name} {command.example}" for name, command in COMMANDS.items()]
    return "\n".join(lines)


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
        commands = values([_PROGRAM, *rest])[1:]
    except flags.UnrecognizedFlagError as error:
        raise ConfigError(_unknown_flag(rest, error.flagname, config)) from error
    except flags.Error as error:
        raise ConfigError(_refused(values, error)) from error
    command, after = _command(commands or [DEFAULT])
    used = {n: str(values[n].value) for n in FLAGS if n != CONFIG and values[n].present}
    if path is not None:
        used = {CONFIG: path, **used}
    _check_used(command, used)
    if command != "eval" and CONFIG in COMMANDS[command].flags and path is None:
        raise ConfigError(_GIVE_CONFIG)
    used.pop(CONFIG, None)
    return Arguments(
        command,
        config,
        {n: os.path.expanduser(value) if n in _PATHS else value for n, value in used.items()},
        after,
    )


_GIVE_CONFIG = "Give a config, such as --config=arithmetic or a file of your own; --help tells more."


def _of_run(words: Sequence[str]) -> ConfigDict | None:
    """Returns the config of the run that `eval` is to evaluate, so that settings can be changed."""
    named = [match[1] for match in map(re.compile(r"--?workdir=(.+)").fullmatch, words) if match]
    if "eval" not in words or not named:
        return None
    return config_file.of_run(Path(os.path.expanduser(named[-1])))


def _command(words: Sequence[str]) -> tuple[str, str]:
    """The command, and the words after it."""
    first, *after = words
    if first in COMMANDS and COMMANDS[first].words:
        return first, " ".join(after)
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
    return first, ""


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
    for name, (value, text) in FLAGS.items():
        if not value:
            flags.DEFINE_bool(name, False, text, flag_values=values)
        elif name != CONFIG:
            flags.DEFINE_string(name, None, text, flag_values=values)
    if config is None:
        return values
    try:
        config_flags.DEFINE_config_dict(
            CONFIG, config, flag_values=values, lock_config=True, sys_argv=[_PROGRAM, *words]
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
        meant = did_you_mean(name, known, value) or f"`{_PROGRAM} settings` lists all there are."
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
    from configs import base

    return setting_names(base.get_config().to_dict())
