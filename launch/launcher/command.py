"""A command of the launcher as click has it, and what it is given."""

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
_STATUSES = {0: "Done.", 2: "A mistake in the command line or the config; one line names it.",
             130: "Ctrl-C ended it."}  # fmt: skip


class Arguments(NamedTuple):
    """A command line that makes sense.

    Attributes:
      command: its name.
      config: the config with the settings that were given; None where there is none.
      flags: the values of the other flags that were given, as their types read them: text, whole
        numbers, paths with their home directory, `True`, or a tuple for a flag of several values.
      words: those after the command.
    """

    command: str
    config: ConfigDict | None
    flags: Mapping[str, Any]
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """The words with spaces between them."""
        return " ".join(self.words)


class _Context(click.Context):
    formatter_class = TerminalPage


class Command(click.Command):
    """One thing that the launcher does.

    Attributes:
      group: the heading that it stands under in the help.
      module: it has the function `execute`, from `Arguments` to an exit status; it is imported when
        the command is given.
      short_help: one line; `about` has two to five sentences.
      flags: those that it takes, by name; with `config` also all settings.
      examples: its arguments, and what they do.
      page: of the documentation.
      takes: what may stand after it, such as a pattern; empty for nothing.
      own_config: whether it can do without `--config`, since it knows where to find one.
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
        """Returns what the command is given, or refuses a word that it does not take."""
        words = ctx.params["words"]
        if words and not self.takes:
            raise click.NoSuchCommand(words[0], ctx=ctx)
        values = {name: ctx.params[flag.name or ""] for name, flag in self.flags.items()}
        values.pop(CONFIG, None)
        given = {n: one for n, one in values.items() if one not in (None, ()) and one is not False}
        return Arguments(self.name, ctx.obj, given, words)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Item]:
        """Returns the flags and settings that a text may become."""
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
    """All commands; the first one is meant where none is named.

    A command may stand after flags, and `--help` or `--version` anywhere.

    Attributes:
      default: the name of that one.
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
        """Puts the command first, or asks for its help or the version.

        Raises:
          click.NoSuchCommand: the first word is none.
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
        """Writes the commands in groups, and what else there is."""
        for group, commands in itertools.groupby(self.commands.values(), lambda one: one.group):
            with formatter.section(group):
                formatter.write_dl((one.name, one.short_help or "") for one in commands)
        with formatter.section("More"):
            of_one = "What a command does, its flags, and examples. Also: help COMMAND."
            version = ("--version", "Prints the version.")
            formatter.write_dl([("COMMAND --help", of_one), _settings(), version])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a first command."""
        assert isinstance(formatter, TerminalPage)
        with formatter.section("For a start"):
            first = next(iter(self.commands[self.default].examples))
            formatter.write_command(f"{program()} {first}")


def asked(words: Iterable[str]) -> bool:
    """Says whether a command line asks for help or the version."""
    return not {*_HELP, *_VERSION}.isdisjoint(words)


def program() -> str:
    """Returns the words that start this program: those of this process, or the console script."""
    started = getattr(sys.modules["__main__"], "__spec__", None)  # Only by `python -m`.
    module = "" if started is None else started.name.removesuffix(".__main__")
    return f"python -m {module}" if module in MODULES else SCRIPT
