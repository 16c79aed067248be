"""Pages of text for a terminal: click's formatter, with colors and commands to copy."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import click

MOST_COLUMNS = 100
"""The maximum width of a page, and its width if the output is not a terminal."""


class TerminalPage(click.HelpFormatter):
    """Text in sections, paragraphs and lists of definitions, which `show` prints."""

    def __init__(self, *_: object, **__: object) -> None:
        width = None if sys.stdout.isatty() else MOST_COLUMNS
        super().__init__(width=width, max_width=MOST_COLUMNS)

    def write_heading(self, heading: str) -> None:
        """Writes a bold line."""
        self.write(f"{click.style(heading, bold=True)}\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], *_: object, **__: object) -> None:
        """Writes names in color, each with a text beside it, or below a long name."""
        styled = [(click.style(name, fg="cyan"), text) for name, text in rows]
        if styled:
            super().write_dl(styled, MOST_COLUMNS // 3, 2)

    def write_command(self, command: str) -> None:
        """Writes a command in one line, so that it can be copied."""
        self.write(click.style(f"  {command}", fg="green") + "\n")

    def show(self) -> None:
        """Prints what was written."""
        click.echo(self.getvalue().rstrip("\n"), color=in_color())


def in_color() -> bool | None:
    """Returns False if `NO_COLOR` is set, or None, so that click colors only terminals' output."""
    return False if os.environ.get("NO_COLOR") else None
