"""Messages about mistakes on the command line: one line, with a suggestion."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click

from rl_sync.launcher import known
from rl_sync.launcher.command import CONFIG, Command, program
from rl_sync.launcher.command_table import COMMANDS, PROGRAM
from rl_sync.settings.records import ConfigError
from rl_sync.settings.renamed import new_name
from rl_sync.spelling import LIKELY, hint, likeness, nearest, question

# Names that other programs have for our settings.
_ALIASES = {
    "lr": "optimizer.learning_rate",
    "wd": "optimizer.weight_decay",
    "grad_clip": "optimizer.max_gradient_norm",
    "max_grad_norm": "optimizer.max_gradient_norm",
    "warmup_steps": "optimizer.warmup_updates",
    "batch_size": "trainer.groups_per_step",
    "train_batch_size": "trainer.groups_per_step",
    "micro_batch_size": "trainer.microbatch_rows",
    "num_generations": "trainer.group_size",
    "steps": "trainer.steps",
    "num_steps": "trainer.steps",
    "max_steps": "trainer.steps",
    "iterations": "trainer.steps",
    "clip": "algorithm.clip_high",
    "clip_eps": "algorithm.clip_high",
    "gamma": "algorithm.discount",
    "lambda": "algorithm.gae_lambda",
    "beta": "algorithm.kl_coefficient",
    "kl_coef": "algorithm.kl_coefficient",
    "entropy_coef": "algorithm.entropy_coefficient",
    "temp": "rollout.temperature",
    "max_new_tokens": "task.max_completion_tokens",
    "max_tokens": "task.max_completion_tokens",
    "staleness": "sync.max_staleness",
    "explorers": "explorer.count",
    "num_explorers": "explorer.count",
    "workers": "explorer.count",
    "hidden_size": "model.embed_dim",
    "hidden_dim": "model.embed_dim",
    "model": "model.path",
    "dataset": "task.dataset.path",
    "data": "task.dataset.path",
    "output_dir": "workdir",
    "out": "workdir",
    "logdir": "workdir",
    "random_seed": "seed",
}
_ALIAS = 1.05  # Beats the same name in another section, and a similar name in the given one.
_SURE = 0.9  # A name this similar is suggested even from another section.
_SAME_SECTION = 0.7
_OF_SECTION = 0.35  # The weight of the section, beside that of the field.
_MOST = 3


def setting_names(config: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yields the dotted names of all settings of a nested config."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from setting_names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def settings_meant(wrong: str, known: Sequence[str]) -> list[str]:
    """Returns the settings that are most similar to a wrong dotted name: none, one, or a few."""
    fits = {name: _fit(wrong, name) for name in known}
    best = max(fits.values(), default=0.0)
    if best < LIKELY:
        return []
    return [name for name in known if fits[name] > best - 1e-6][:_MOST]


def did_you_mean(wrong: str, known: Sequence[str], value: str = "") -> str | None:
    """Suggests the flags that were probably meant, with the given value; None if there are none.

    Args:
      value: the given value, with its equals sign.
    """
    if renamed := new_name(wrong):
        return f"it is now --config.{renamed}{value}."
    meant = settings_meant(wrong, known)
    return question(*(f"--config.{name}{value}" for name in meant)) if meant else None


def _fit(wrong: str, name: str) -> float:
    """Rates the similarity of a setting's field and section to a wrong name; 0 if unlikely."""
    (section, _, word), (of, _, field) = wrong.rpartition("."), name.rpartition(".")
    near = likeness(word, field)
    if _ALIASES.get(word.lower().replace("-", "_")) == name:
        near = max(near, _ALIAS)
    likely = 1.0 if section == of else likeness(section, of) if section else 0.0
    if section and (of.startswith(f"{section}.") or of.endswith(f".{section}")):
        likely = max(likely, 0.8)
    if likely < _SAME_SECTION:
        return near if near >= _SURE or (not section and near >= LIKELY) else 0.0
    return near + _OF_SECTION * likely if near >= LIKELY else 0.0


def explained(error: click.UsageError, words: Sequence[str]) -> str:
    """Returns a message about a command line that click refused."""
    match error:
        case click.NoSuchCommand(command_name=word, ctx=click.Context(command=Command(name=name))):
            if word in COMMANDS:
                return f"{name} and {word} are 2 commands: give one at a time."
            return _no_command(word)
        case click.NoSuchCommand(command_name=word):
            return _no_command(word)
        case click.BadOptionUsage(option_name=flag):
            if any(flag in one.opts and one.is_flag for one in _all_flags()):
                return f"{flag} takes no value."
            return f"Missing value for flag {flag}. {GIVE_VALUE}"
        case click.NoSuchOption(
            option_name=flag, ctx=click.Context(command=Command() as command, obj=config)
        ):
            word = next((one for one in words if one.startswith(flag)), flag)
            return _wrong_flag(word, command, has_config=config is not None)
        case click.MissingParameter(
            ctx=click.Context(command=Command(takes=""), params={"words": [word, *_]})
        ):
            return _no_command(word)
        case click.MissingParameter(param=click.Option(name="config")):
            return _GIVE_CONFIG
        case click.MissingParameter(ctx=click.Context(command=Command() as command)):
            needed = [f"--{name}={one.metavar}" for name, one in command.flags.items()
                      if one.required]  # fmt: skip
            example = f"{program()} {command.name} {next(iter(command.examples))}"
            return f"{command.name} needs {_listed(needed)}, as in: {example}"
        case click.BadParameter(param=click.Option(opts=[flag], type=type)):
            word = _given(flag, words)
            match type:
                case click.Choice(choices=choices):
                    end = hint(word.partition("=")[2], choices)
                    return f"{word} must be one of {', '.join(choices)}{end}"
                case click.IntRange(min=least, max=most):
                    end = f"of at least {least}" if most is None else f"from {least} to {most}"
                    return f"{word} must be a whole number {end}."
    return error.format_message()


def _given(flag: str, words: Sequence[str]) -> str:
    """Returns a flag with the value that it was given."""
    for word, after in itertools.pairwise([*words, ""]):
        if word == flag:
            return f"{flag}={after}"
        if word.startswith(f"{flag}="):
            return word
    return flag


def _all_flags() -> Iterator[click.Option]:
    return (flag for one in COMMANDS.values() for flag in one.flags.values())


def without_config(word: str) -> str:
    """Returns a message about a setting that is given without a config."""
    return f"{word} changes a setting of a config: {_GIVE_CONFIG}"


GIVE_VALUE = "Write it as --NAME=VALUE."
_GIVE_CONFIG = (
    "Give a config, such as --config=arithmetic or a file of your own; --help tells more."
)


def _no_command(word: str) -> str:
    path = os.path.expanduser(word)
    if word.endswith(".py") or os.path.exists(path):
        flag = "--workdir" if os.path.isdir(path) else "--config"
        return f"{word!r} needs the name of a flag: {question(f'{flag}={word}')}"
    return (
        f"{word!r} is not a command, which is one of {', '.join(COMMANDS)} ({PROGRAM.default} if"
        f" left out){hint(word, COMMANDS)}"
    )


def _wrong_flag(word: str, command: Command, *, has_config: bool) -> str:
    """Returns a message about a flag that this command, or every command, lacks."""
    name, equals, value = word.lstrip("-").partition("=")
    users = [one.name for one in COMMANDS.values() if name in one.flags]
    meant = did_you_mean(name, [*known.settings()], equals + value)
    if users:
        own = meant if CONFIG in command.flags else None
        takes = command.takes or ", ".join(f"--{flag}" for flag in command.flags)
        return (
            f"{word} is for {_listed(users)}, not for {command.name};"
            f" {own or f'{command.name} takes {takes}.'}"
        )
    near = nearest(name, [flag.opts[0].removeprefix("--") for flag in _all_flags()])
    if near and (meant is None or not has_config):
        meant = question(f"--{near}{equals}{value}")
    return f"Unknown flag: {word}; {meant or '--help names all there are.'}"


def _listed(names: Sequence[str]) -> str:
    """Writes names as `a`, `a and b`, or `a, b and c`."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def check_names(given: Iterable[re.Match[str]], config: Mapping[str, object]) -> None:
    """Refuses settings that a config does not have.

    Args:
      given: the settings' names, and their values with an equals sign.

    Raises:
      ConfigError: there is no such setting; the message suggests others.
    """
    all_names = list(setting_names(config))
    for match in given:
        name, value = match[1], match[2] or ""
        if name in all_names:
            continue
        inside = [path for path in all_names if path.startswith(f"{name}.")]
        if inside:
            raise ConfigError(
                f"--config.{name} is a section, not a setting: it has"
                f" {', '.join(f'--config.{path}' for path in inside[:6])}"
                + (", …" if len(inside) > 6 else ".")
            )
        meant = did_you_mean(name, all_names, value)
        lists = f"`{program()} settings` lists all there are."
        raise ConfigError(f"Unknown setting: --config.{name}; {meant or lists}")
