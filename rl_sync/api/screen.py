"""Screens for the lines that a run prints: plain output, and a notebook's."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Protocol


class Screen(Protocol):
    """Takes the lines that a run prints."""

    def show(self, line: str) -> None:
        """Shows a line."""


class Plain:
    """A screen of plain output."""

    def show(self, line: str) -> None:
        """See `Screen`."""
        print(line, flush=True)


class Silent:
    """A screen that stays empty."""

    def show(self, line: str) -> None:
        """See `Screen`."""


class Notebook:
    """A screen below a notebook's cell: the line that tells how far the run is is redrawn."""

    def __init__(self) -> None:
        self._status: Any = None

    def show(self, line: str) -> None:
        """See `Screen`."""
        if not _is_status(line):
            print(line, flush=True)
            return
        shown = importlib.import_module("IPython.display")
        content = shown.Pretty("\n".join(line.split(" | ")))
        if self._status is None:
            self._status = shown.display(content, display_id=True)
        else:
            self._status.update(content)


def _is_status(line: str) -> bool:
    """Says whether a line is one of those that the live display prints, such as `[1:23] rl 3/9`."""
    clock, bracket, _ = line.partition("] ")
    return bool(bracket) and clock.startswith("[") and clock[1:].replace(":", "").isdecimal()


def in_notebook() -> bool:
    """Says whether this process is a notebook's kernel."""
    shell = sys.modules.get("IPython")
    instance = shell.get_ipython() if shell is not None else None
    return instance is not None and hasattr(instance, "kernel")
