"""The help: all commands in groups, or one with its flags and examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rl_sync.launcher.command import CONFIG, Arguments, Command, Flag, program
from rl_sync.launcher.commands import COMMANDS, DEFAULT, GROUPS
from rl_sync.launcher.terminal import Page
from rl_sync.settings.records import ConfigError
from rl_sync.spelling import hint

_STATUSES = {0: "Done.", 2: "A mistake in the command line or the config; one line names it.",
             130: "Ctrl-C ended it."}  # fmt: skip


def execute(arguments: Arguments) -> int:
    """Prints the help of the command that is named, or that of all."""
    name = arguments.text
    if name and name not in COMMANDS:
        raise ConfigError(
            f"{name!r} is not a command, which is one of {', '.join(COMMANDS)}"
            f"{hint(name, COMMANDS)}"
        )
    show(name)
    return 0


def asked(words: Sequence[str]) -> bool:
    """Says whether a command line asks for help by a flag."""
    return any(word in ("-h", "-help", "--help", "--helpfull") for word in words)


def show(name: str = "") -> None:
    """Prints the help of a command; of all, if none is named."""
    if name:
        _show_command(Page(), name, COMMANDS[name])
    else:
        _show_all(Page())


def show_for(words: Sequence[str]) -> None:
    """Prints the help of the command in a command line."""
    given = [word for word in words if not word.startswith("-")]
    has_config = any(word.startswith(("--config", "-config")) for word in words)
    commands = [word for word in given if word in COMMANDS]
    if commands[:1] == ["help"] and len(commands) > 1:
        commands.pop(0)
    show(commands[0] if commands else DEFAULT if has_config and not given else "")


def _show_all(page: Page) -> None:
    ours = program()
    page.paragraph(f"usage: {ours} [COMMAND] [FLAGS]")
    for group, title in GROUPS.items():
        page.paragraph("")
        page.heading(title)
        page.entries(
            (name, command.summary) for name, command in COMMANDS.items() if command.group == group
        )
    page.paragraph("")
    page.heading("More")
    page.entries(
        [
            ("COMMAND --help", "What a command does, its flags, and examples. Also: help COMMAND."),
            ("--config.NAME=VALUE", f"Changes a setting; `{ours} settings` lists them."),
            ("--version", "Prints the version."),
        ]
    )
    page.paragraph("")
    page.heading("For a start")
    page.command(f"{ours} {next(iter(COMMANDS[DEFAULT].examples))}")


def _show_command(page: Page, name: str, command: Command) -> None:
    ours = program()
    page.paragraph(f"usage: {usage(name)}")
    page.paragraph("")
    page.paragraph(f"{command.summary} {command.about}")
    if command.flags:
        page.paragraph("")
        page.heading("Flags")
        page.entries((_spelled(flag, of), _told(of)) for flag, of in command.flags.items())
    if CONFIG in command.flags:
        page.paragraph("")
        page.heading("Settings")
        page.entries(
            [
                (
                    "--config.NAME=VALUE",
                    f"Changes a setting of the config, as often as needed. `{ours} settings` lists"
                    f" all, and `{ours} settings PATTERN` those that a word fits.",
                )
            ]
        )
    page.paragraph("")
    page.heading("Examples")
    for example, meaning in command.examples.items():
        page.paragraph(meaning, indent=2)
        page.command(f"{ours} {name} {example}".rstrip())
    page.paragraph("")
    page.heading("Exit status")
    statuses = sorted({**_STATUSES, **command.statuses}.items())
    page.entries((str(status), meaning) for status, meaning in statuses)
    page.paragraph("")
    page.paragraph(f"More: {command.page}")


def usage(name: str) -> str:
    """Returns the form of a command, with what it needs."""
    command = COMMANDS[name]
    parts = [program(), f"[{name}]" if name == DEFAULT else name]
    parts += [_spelled(flag, of) for flag, of in command.flags.items() if of.needed]
    if any(not of.needed for of in command.flags.values()):
        parts.append("[FLAGS]")
    if CONFIG in command.flags:
        parts.append("[--config.NAME=VALUE …]")
    if command.words:
        parts.append(f"[{command.words.split()[-1]}]")
    return " ".join(parts)


def _spelled(name: str, flag: Flag) -> str:
    return f"--{name}={flag.value}".rstrip("=")


def _told(flag: Flag) -> str:
    return " ".join(_parts(flag))


def _parts(flag: Flag) -> Iterator[str]:
    yield flag.meaning
    if flag.needed:
        yield "Needed."
    elif flag.default:
        yield f"Default: {flag.default}."
