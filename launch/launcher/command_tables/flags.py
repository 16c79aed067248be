"""Flags that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from rl_sync.launcher.command import CONFIG
from rl_sync.launcher.completing import Item, PathOf


def flag(name: str, value: str, meaning: str, default: str = "", **more: Any) -> click.Option:
    """Makes a flag of a command.

    Args:
      value: the name of its value in the help; empty for choices, and for a flag without a value.
      meaning: its description, one or two sentences.
      default: the default, in words.
      more: arguments of `click.Option`.
    """
    return click.Option(
        [f"--{name}"],
        metavar=value or None,
        help=f"{meaning} Default: {default}." if default else meaning,
        is_flag=None if value or "type" in more else True,
        **more,
    )


def offered(*values: str) -> Callable[..., list[Item]]:
    """Returns a function that suggests some of a flag's values at the Tab key."""
    return lambda *_: [*map(Item, values)]


def config_flag(default: str = "") -> click.Option:
    """Makes the flag of a config file, which is required unless there is a default."""
    meaning = "Config file, or the name of a config of the package, which `configs` lists."
    return flag(CONFIG, "FILE", meaning, default, type=PathOf("config"), required=not default)


def run_flag(meaning: str = "Work directory of the run.", required: bool = True) -> click.Option:
    """Makes the flag of a run's work directory."""
    return flag("workdir", "DIRECTORY", meaning, type=PathOf("run"), required=required)


FILE, FOLDER = PathOf("file"), PathOf("directory")
FROM_0, FROM_1 = click.IntRange(0), click.IntRange(1)
HOST = flag("host", "ADDRESS", "Address to serve at.", "127.0.0.1, for this machine alone")
PORT = flag("port", "PORT", "Port to serve at.", "any free one", type=click.IntRange(0, 65535))
CURVES = flag(
    "out", "FILE", "Page (.html) or picture (.png) with curves.", "none is written", type=FILE
)
JSON = flag("json", "", "Prints a JSON list of objects, for scripts.")
