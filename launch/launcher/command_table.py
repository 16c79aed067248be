"""The table of the commands.

A new command needs a module with a function `execute`, and an entry in a module of
`rl_sync.launcher.command_tables`, or here. click derives the parser, the help and shell completion
from it. The first command runs if none is named.
"""

from __future__ import annotations

from rl_sync.launcher.catalogs import CATALOGS
from rl_sync.launcher.command import Command, LauncherProgram
from rl_sync.launcher.command_tables.flags import JSON
from rl_sync.launcher.command_tables.looking_commands import LOOKING_COMMANDS
from rl_sync.launcher.command_tables.policy_commands import POLICY_COMMANDS
from rl_sync.launcher.command_tables.training_commands import TRAINING_COMMANDS

_LIST, _LEARN = "List the choices", "Learn the command line"

_COMMANDS = [
    *TRAINING_COMMANDS,
    *LOOKING_COMMANDS,
    *POLICY_COMMANDS,
    Command(
        "settings",
        _LIST,
        "rl_sync.launcher.commands.lists",
        "Lists all settings and their meanings, or those that match a PATTERN.",
        "Prints each setting with its values, its default and its meaning. A pattern is one word or"
        " several, each of which begins a word of the name, the meaning or the choices. Any setting"
        " is changed by --config.NAME=VALUE, or in a config file.",
        [JSON],
        {"": "All.", "learning rate": "Those with both words.", "sync --json": "For a script."},
        "docs/settings.md",
        takes="a PATTERN",
    ),
    *(
        Command(
            name,
            _LIST,
            "rl_sync.launcher.catalogs",
            one.summary,
            "Prints a line for each. A pattern is one word or several, each of which begins a word"
            f" of the name or the text. If only one {one.noun} matches, all about it is printed.",
            [JSON],
            {
                "": "All.",
                one.example: "Those with a word.",
                f"{one.example} --json": "The same, for a script.",
            },
            one.page,
            takes="a PATTERN",
        )
        for name, one in CATALOGS.items()
    ),
    Command(
        "help",
        _LEARN,
        "",
        "Explains a command, or lists all of them.",
        "Prints what a command does, its flags with their defaults, examples, and its exit"
        " statuses. `COMMAND --help` prints the same.",
        [],
        {"": "All commands.", "plan": "One command."},
        "docs/using.md",
        takes="a COMMAND",
    ),
    Command(
        "completion",
        _LEARN,
        "rl_sync.launcher.completing",
        "Prints a script that lets the Tab key complete commands, flags, settings and paths.",
        "Prints the script of a shell: bash, zsh or fish. Its first lines say how to install it. It"
        " completes `rl-sync`, `python -m rl_sync`, and `python -m launcher` in the clone.",
        [],
        {"bash": "For bash.", "zsh": "For zsh.", "fish": "For fish."},
        "docs/using.md",
        takes="a SHELL",
    ),
]

PROGRAM = LauncherProgram(_COMMANDS)
COMMANDS = PROGRAM.commands
