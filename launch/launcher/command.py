"""Defines the launcher's commands, as commands of click, and their arguments."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import rl_sync
from rl_sync.launcher.completing import MODULES, NAMED, SCRIPT, Item, flags_after, words_after
from rl_sync.launcher.terminal import TerminalPage

if TYPE_CHECKING:
    from ml_collections import ConfigDict

CONFIG = "config"
_HELP = ("--help", "-h", "-help", "--helpfull")
_VERSION = ("--version", "-version")
Flags = Mapping[str, Any]
"""Values of a command's flags that were given, converted by the flags' types: text, whole numbers,
paths with `~` expanded, `True`, or a tuple for a repeated flag."""

_STATUSES = {0: "Done.", 2: "A mistake in the command line or the config; one line names it.",
             130: "Ctrl-C ended it."}  # fmt: skip


class Arguments(NamedTuple):
    """A valid command line.

    Attributes:
      command: the name of the command.
      config: the config with the changed settings; None if no config is given.
      flags: the other flags that were given.
      words: the words after the command.
      settings: the words that name the config and change its settings, as `--NAME=VALUE`.
    """

    command: str
    config: ConfigDict | None
    flags: Flags
    words: tuple[str, ...]
    settings: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The words with spaces between them."""
        return " ".join(self.words)


class _Context(click.Context):
    formatter_class = TerminalPage


class Command(click.Command):
    """A command of the launcher.

    Attributes:
      group: the heading above it in the help.
      module: the module of its function `execute`, from `Arguments` to an exit status. It is
        imported when the command runs.
      short_help: its description in one line.
      about: its description in two to five sentences.
      flags: its flags by name; with the flag `config` it also takes all settings.
      examples: its example arguments, with what they do.
      page: its page of the documentation.
      takes: the words that may follow it, such as a pattern; empty for none.
      own_config: whether it finds a config itself if `--config` is missing.
      statuses: the meanings of its exit statuses.
    """

    context_class = _Context
    name: str

    def __init__(
        self,
        name: str,
        group: str,
        module: str,
        short_help: str,
        about: str,
        flags: Iterable[click.Option],
        examples: Mapping[str, str],
        page: str,
        *,
        takes: str = "",
        own_config: bool = False,
        statuses: Mapping[int, str] | None = None,
    ) -> None:
        self.flags = {flag.opts[0].removeprefix("--"): flag for flag in flags}
        needed = [f"--{name}={one.metavar}" for name, one in self.flags.items() if one.required]
        settings = ["[--config.NAME=VALUE …]"] if CONFIG in self.flags else []
        words = click.Argument(
            ["words"],
            nargs=-1,
            required=False,
            metavar=f"[{takes.removeprefix('a ')}]" if takes else "",
            shell_complete=words_after,
        )
        super().__init__(
            name,
            params=[*flags, words],
            help=f"{short_help} {about}",
            short_help=short_help,
            options_metavar=" ".join([*needed, "[FLAGS]", *settings]),
        )
        self.group, self.module, self.about, self.examples = group, module, about, examples
        self.page, self.takes, self.own_config = page, takes, own_config
        self.statuses = dict(sorted({**_STATUSES, **(statuses or {})}.items()))

    def invoke(self, ctx: click.Context) -> Arguments:
        """Returns the command's arguments, or refuses a word that it does not take."""
        words = ctx.params["words"]
        if words and not self.takes:
            raise click.NoSuchCommand(words[0], ctx=ctx)
        values = {name: ctx.params[flag.name or ""] for name, flag in self.flags.items()}
        values.pop(CONFIG, None)
        given = {n: one for n, one in values.items() if one not in (None, ()) and one is not False}
        return Arguments(self.name, ctx.obj, given, words)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Item]:
        """Returns the flags and settings that may complete a text."""
        return [*flags_after(self.flags, incomplete)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the flags."""
        options = (one for one in self.get_params(ctx) if isinstance(one, click.Option))
        with formatter.section("Flags"):
            formatter.write_dl(one.get_help_record(ctx) or ("", "") for one in options)
            if CONFIG in self.flags:
                formatter.write_dl([_settings()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the examples, the exit statuses, and the page of the documentation."""
        assert isinstance(formatter, TerminalPage)
        with formatter.section("Examples"):
            for example, meaning in self.examples.items():
                formatter.write_text(meaning)
                formatter.write_command(f"{program()} {self.name} {example}".rstrip())
        with formatter.section("Exit status"):
            formatter.write_dl((str(one), meaning) for one, meaning in self.statuses.items())
        formatter.write(f"\nMore: {self.page}\n")


def _settings() -> tuple[str, str]:
    lists = f"`{program()} settings` lists all, and `{program()} settings PATTERN` some."
    return "--config.NAME=VALUE", f"Changes a setting of the config, as often as needed: {lists}"


class LauncherProgram(click.Group):
    """All commands. Flags may stand before the command, and `--help` or `--version` anywhere.

    Attributes:
      default: the name of the first command, which runs if none is named.
    """

    context_class = _Context
    commands: dict[str, Command]  # type: ignore[assignment]

    def __init__(self, commands: Iterable[Command]) -> None:
        super().__init__(
            commands={one.name: one for one in commands},
            options_metavar="",
            subcommand_metavar="[COMMAND] [FLAGS]",
        )
        click.version_option(rl_sync.__version__, message="rl_sync %(version)s")(self)
        self.default = next(iter(self.commands))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Moves the command to the front, or `--help` or `--version` if one is asked for.

        Raises:
          click.NoSuchCommand: the first word is not a command.
        """
        if args[:1] == ["help"] and not asked(args) and not ctx.resilient_parsing:
            args = [*args[1:], "--help"]
        named = [word for word in args if word in self.commands][:1]
        ctx.meta[NAMED] = bool(named)
        if args and not named and args[0][:1] != "-" and not ctx.resilient_parsing:
            raise click.NoSuchCommand(args[0], ctx=ctx)
        if not {*args}.isdisjoint(_VERSION):
            return super().parse_args(ctx, ["--version"])
        if not {*args}.isdisjoint(_HELP):
            of_run = any(word.startswith(f"--{CONFIG}") for word in args)
            return super().parse_args(ctx, [*(named or [self.default] * of_run), "--help"])
        if named:
            args.remove(*named)
        return super().parse_args(ctx, [*(named or [self.default]), *args])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands in groups, and the flags that all of them take."""
        for group, commands in itertools.groupby(self.commands.values(), lambda one: one.group):
            with formatter.section(group):
                formatter.write_dl((one.name, one.short_help or "") for one in commands)
        with formatter.section("More"):
            of_one = "What a command does, its flags, and examples. Also: help COMMAND."
            version = ("--version", "Prints the version.")
            formatter.write_dl([("COMMAND --help", of_one), _settings(), version])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes an example command for beginners."""
        assert isinstance(formatter, TerminalPage)
        with formatter.section("For a start"):
            first = next(iter(self.commands[self.default].examples))
            formatter.write_command(f"{program()} {first}")


def asked(words: Iterable[str]) -> bool:
    """Says whether a command line asks for help or the version."""
    return not {*_HELP, *_VERSION}.isdisjoint(words)


def program() -> str:
    """Returns the words that started this program: the script, or `python -m` and a module."""
    started = getattr(sys.modules["__main__"], "__spec__", None)  # None without `python -m`.
    module = "" if started is None else started.name.removesuffix(".__main__")
    return f"python -m {module}" if module in MODULES else SCRIPT
