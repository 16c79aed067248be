"""The table of a run of `benchmarks/device.py`, written to its files after every change."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from device_parts.finding import Finding

NOT_REACHED = "not reached"
MACHINE = "machine"
"""Part whose findings are the head of the table."""


class ResultTable:
    """Statuses and findings of all parts, in two files: Markdown and JSON.

    Both files exist from the start, and are replaced as a whole, so they are complete whenever the
    program is killed.

    Args:
      to: path of both files, without an ending.
      parts: names of the chosen parts, and a sentence about each.
      command: command line that measures.
    """

    def __init__(self, to: Path, parts: dict[str, str], command: Sequence[str]) -> None:
        self._to, self._about = to, parts
        to.parent.mkdir(parents=True, exist_ok=True)
        self._head: dict[str, Any] = {
            "command": " ".join(command),
            "began": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
            "status": "running, or killed",
        }
        self._status = dict.fromkeys(parts, NOT_REACHED)
        self._secs: dict[str, float] = {}
        self._found: dict[str, list[Finding]] = {name: [] for name in parts}
        self._write()

    @property
    def files(self) -> tuple[Path, Path]:
        """Paths of the Markdown file and of the JSON file."""
        # with_suffix would take a part of a name that has a dot.
        return Path(f"{self._to}.md"), Path(f"{self._to}.json")

    def statuses(self) -> dict[str, str]:
        """Returns the status of each part."""
        return dict(self._status)

    def add(self, part: str, finding: Finding) -> None:
        """Adds a finding of a part."""
        self._found[part].append(finding)
        self._write()

    def mark(self, part: str, status: str, secs: float | None = None) -> None:
        """Sets the status of a part, and the seconds that it took."""
        self._status[part] = status
        if secs is not None:
            self._secs[part] = secs
        self._write()

    def end(self, status: str) -> None:
        """Sets the status of the whole run."""
        self._head["status"] = status
        self._write()

    def as_json(self) -> dict[str, Any]:
        """Returns the contents of the JSON file."""
        parts = {
            name: {
                "status": self._status[name],
                "secs": self._secs.get(name),
                "findings": [one._asdict() for one in self._found[name]],
            }
            for name in self._about
        }
        return {**self._head, "parts": parts}

    def as_markdown(self) -> str:
        """Returns the contents of the Markdown file."""
        head = {key: value for key, value in self._head.items() if key != "command"}
        lines = ["# Measured on this device", "", f"    {self._head['command']}", ""]
        lines += _rows("| | |", [(name, str(value)) for name, value in head.items()])
        machine = self._found.get(MACHINE, [])
        for one in machine:
            lines.append(_row((one.name, f"{_number(one.value)} {one.unit} {one.beside}".strip())))
        lines += ["", "## Parts", ""]
        of_parts = [
            (name, self._status[name], f"{self._secs[name]:.0f}" if name in self._secs else "")
            for name in self._about
        ]
        lines += _rows("| part | status | s |", of_parts)
        for name, about in self._about.items():
            if name == MACHINE or not self._found[name]:
                continue
            lines += ["", f"## {name}", "", about, ""]
            found = [(f.name, _number(f.value), f.unit, f.beside) for f in self._found[name]]
            lines += _rows("| | found | unit | beside |", found)
            if self._status[name] != "done":
                lines += ["", f"{name}: {self._status[name]}"]
        return "\n".join(lines) + "\n"

    def _write(self) -> None:
        texts = (self.as_markdown(), json.dumps(self.as_json(), indent=1, ensure_ascii=False))
        for path, text in zip(self.files, texts, strict=True):
            fresh = Path(f"{path}.tmp")
            fresh.write_text(text)
            os.replace(fresh, path)


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.4g}"


def _rows(head: str, rows: Sequence[Sequence[str]]) -> list[str]:
    return [head, "|" + "---|" * (head.count("|") - 1), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"
