"""Headings, paragraphs and lists as wide as the terminal.

Colors are for terminals alone, and not where `NO_COLOR` is set: rich looks after that.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

MOST_COLUMNS = 100
"""Of a terminal, and those of an output that is none."""


class Page:
    """Prints text on standard output.

    Attributes:
      columns: the width of its lines.
    """

    def __init__(self) -> None:
        width = None if sys.stdout.isatty() else MOST_COLUMNS
        self._console = Console(width=width, highlight=False)
        self.columns = max(24, min(self._console.width, MOST_COLUMNS))

    def heading(self, text: str) -> None:
        """Prints a bold line."""
        self._print(Text(text, "bold"))

    def paragraph(self, text: str, indent: int = 0) -> None:
        """Prints text, wrapped; an empty line for none."""
        space = " " * indent
        for line in _wrapped(text, self.columns, first=space, next=space) or [""]:
            self._print(Text(line))

    def plain(self, text: str) -> None:
        """Prints lines as they are."""
        self._print(Text(text))

    def entries(self, entries: Iterable[tuple[str, str]]) -> None:
        """Prints names, each with a text beside it, or below it where it is long."""
        rows = list(entries)
        most = max(16, self.columns // 3)
        column = max((len(name) for name, _ in rows if len(name) <= most), default=0) + 4
        for name, text in rows:
            space = " " * column
            head = f"  {name}".ljust(column)
            fits = len(head) <= column
            if not fits:
                self._print(Text(head, "cyan"))
            lines = _wrapped(text, self.columns, first=space, next=space)
            if fits and not lines:
                self._print(Text(head.rstrip(), "cyan"))
            for number, line in enumerate(lines):
                styled = Text(head + line[column:] if fits and not number else line)
                if fits and not number:
                    styled.stylize("cyan", 0, len(head))
                self._print(styled)

    def command(self, command: str) -> None:
        """Prints a command that can be pasted, over several lines if it is long."""
        lines = _wrapped(command, self.columns - 2, first="  ", next="      ")
        self._print(Text(" \\\n".join(lines), "green"))

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


def _wrapped(text: str, columns: int, *, first: str, next: str) -> list[str]:
    return textwrap.wrap(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=next,
        break_long_words=False,
        break_on_hyphens=False,
    )
