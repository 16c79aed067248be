"""Screens that show the lines that a run prints: plain output, and a notebook's cell."""

from __future__ import annotations

import html
import importlib
import os
import sys
from pathlib import Path
from typing import Any, Protocol


class OutputScreen(Protocol):
    """Shows the lines that a run prints."""

    def show(self, line: str) -> None:
        """Shows a line."""

    def close(self) -> None:
        """Shows what remains to be shown after the last line."""


class Plain:
    """A screen for plain output."""

    def show(self, line: str) -> None:
        """See `OutputScreen`."""
        print(line, flush=True)

    def close(self) -> None:
        """See `OutputScreen`."""


class Silent:
    """A screen that shows nothing."""

    def show(self, line: str) -> None:
        """See `OutputScreen`."""

    def close(self) -> None:
        """See `OutputScreen`."""


class Notebook:
    """A screen below a notebook's cell: one output, which is updated during the run.

    It shows the plan (folded), the roles' latest states (one in each row), and the other lines of
    the run: alarms, and at the end the report. Paths within the current directory are shortened to
    relative ones, and the home directory to `~`.
    """

    def __init__(self) -> None:
        self._plan: list[str] = []
        self._status: list[str] = []
        self._said: list[str] = []
        self._handle: Any = None
        self._places = {f"{Path.cwd()}{os.sep}": "", f"{Path.home()}{os.sep}": f"~{os.sep}"}

    def show(self, line: str) -> None:
        """See `OutputScreen`."""
        for place, short in self._places.items():
            line = line.replace(place, short)
        if _is_status(line):
            self._status = line.split(" | ")
        elif self._status or self._said:
            self._said.append(line)
        else:
            self._plan.append(line)
        self._draw()

    def close(self) -> None:
        """Removes the states of the roles, which have ended."""
        if self._said:
            self._status = []
            self._draw()

    def _draw(self) -> None:
        shown = importlib.import_module("IPython.display")
        content = {"text/plain": self._text(), "text/html": self._html()}
        if self._handle is None:
            self._handle = shown.display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def _text(self) -> str:
        return "\n".join([*self._status, *self._said] or self._plan).strip("\n")

    def _html(self) -> str:
        """Returns the output as HTML; before the first status, it is only the plan."""
        if not (self._status or self._said):
            return _preformatted(self._plan)
        plan = f"<summary>The plan of the run</summary>{_preformatted(self._plan)}"
        return (
            f"<details>{plan}</details>" + _preformatted(self._status) + _preformatted(self._said)
        )


def _preformatted(lines: list[str]) -> str:
    text = "\n".join(lines).strip("\n")
    return f"<pre>{html.escape(text)}</pre>" if text else ""


def _is_status(line: str) -> bool:
    """Says whether a line is a status line of the live display, such as `[1:23] rl 3/9`."""
    clock, bracket, _ = line.partition("] ")
    return bool(bracket) and clock.startswith("[") and clock[1:].replace(":", "").isdecimal()


def in_notebook() -> bool:
    """Says whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    instance = shell.get_ipython() if shell is not None else None
    return instance is not None and hasattr(instance, "kernel")
