"""Tables and lines that a benchmark prints, and what is expected of them.

A figure is a finite number, with its unit; cells may have several, as `0.5 (0.4 to 0.6)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_BETWEEN = re.compile(r"[\s/()±%x×]|\bto\b|,(?= )")
_FIGURE = re.compile(rf"{NUMBER}|[+-]?\d*\.\d+")


class Table(NamedTuple):
    """A Markdown table.

    Attributes:
      columns: the heads of all columns.
      rows: the first cells of the rows, in order.
      optional: pattern of the first cells of rows that are there only where a peer is installed.
      texts: columns without figures.
      words: what cells may have in place of figures.
      same: cells whose text is known, as (row, column).
    """

    columns: str
    rows: Sequence[str]
    optional: str = ""
    texts: Sequence[str] = ()
    words: Sequence[str] = ()
    same: Mapping[tuple[str, str], str] = {}

    def faults(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
        """Compares with what was printed."""
        expected = cells_of(f"|{self.columns}|")
        if [*head] != expected:
            return [f"the columns are {head}, and not {expected}"]
        names = [row[0] for row in rows]
        needed = [name for name in names if not re.fullmatch(self.optional or "(?!)", name)]
        faults = []
        if needed != [*self.rows]:
            faults.append(f"the rows are {needed}, and not {[*self.rows]}")
        for row in rows:
            if len(row) != len(head):
                faults.append(f"{row} has {len(row)} cells in {len(head)} columns")
                continue
            for column, cell in [*zip(head, row, strict=True)][1:]:
                wanted = self.same.get((row[0], column), cell)
                may_be_text = column in self.texts or cell in self.words
                if cell != wanted or not (may_be_text or is_of_figures(cell)):
                    faults.append(f"{row[0]!r} has {cell!r} as {column!r}")
        return faults


def cells_of(line: str) -> list[str]:
    """Returns the cells of a line of a table."""
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def tables_of(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """Returns the head and the rows of each Markdown table of a text."""
    found: list[tuple[list[str], list[list[str]]]] = []
    before = ""
    for line in text.splitlines():
        if re.fullmatch(r"\|(\s*-+\s*\|)+", line.strip()):
            found.append((cells_of(before), []))
        elif line.startswith("|") and before.startswith("|") and found:
            found[-1][1].append(cells_of(line))
        before = line
    return found


def is_of_figures(cell: str) -> bool:
    """Says whether a cell has figures, all of them finite, and their units alone."""
    return bool(_FIGURE.search(cell)) and not _BETWEEN.sub("", _FIGURE.sub("", cell))


def is_line(template: str, line: str) -> bool:
    """Says whether a line is what a template says, apart from the width of spaces.

    `#` is a number, `##` are some numbers, `…` is any text.
    """
    meaning = {"#": NUMBER, "##": rf"{NUMBER}(?: {NUMBER})*", "…": ".*"}
    parts = re.split(r"(##?|…)", " ".join(template.split()))
    pattern = "".join(meaning.get(part, re.escape(part)) for part in parts)
    return bool(re.fullmatch(pattern, " ".join(line.split())))
