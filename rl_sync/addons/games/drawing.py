"""Terminal drawings in plain text, with colors described in words."""

from __future__ import annotations

import re
from typing import NamedTuple

_CODE = re.compile(r"\x1b\[([0-9;]*)m")
_OTHER_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]")
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


class Colored(NamedTuple):
    """A part of a drawing in one color.

    Attributes:
      color: such as `blue`, or `on blue` for a background; `strong` for bold text without a color.
      text: its text.
      line, column: its place in the plain drawing, from 1.
    """

    color: str
    text: str
    line: int
    column: int


def read_drawing(drawing: str) -> tuple[str, list[Colored]]:
    """Returns a drawing without its colors, and the colored parts; colors may be nested."""
    plain, parts = "", []
    active: list[str] = []
    at = 0
    drawing = _OTHER_CODE.sub("", drawing)
    for match in (*_CODE.finditer(drawing), None):
        text = drawing[at : len(drawing) if match is None else match.start()]
        if text:
            before = plain.rpartition("\n")
            place = plain.count("\n") + 1, len(before[2]) + 1
            parts += [Colored(color, text, *place) for color in dict.fromkeys(active)]
            plain += text
        if match is not None:
            at = match.end()
            color = _color(match[1])
            active = [*active, color] if color else []
    return plain, parts


def written(drawing: str, *, says_colors: bool = True) -> str:
    """Writes a drawing in plain text.

    Puts parts with a colored background in parentheses or, if no part has one, all colored parts.
    If there are several colors, lines after the drawing give the color of each part.

    Args:
      says_colors: whether there are such lines.
    """
    plain, parts = read_drawing(drawing)
    marked = [part for part in parts if part.color.startswith("on ")] or parts
    lines = plain.split("\n")
    places = {(part.line, part.column): part.text for part in marked if "\n" not in part.text}
    for (line, column), text in sorted(places.items(), reverse=True):
        whole = lines[line - 1]
        end = column - 1 + len(text)
        lines[line - 1] = f"{whole[: column - 1]}({text}){whole[end:]}"
    shown = "\n".join(lines)
    if not says_colors or len({part.color for part in parts}) < 2:
        return shown
    legend = [f"{one.color}: {one.text!r} (line {one.line}, column {one.column})" for one in parts]
    return "\n".join([shown.rstrip("\n"), *legend])


def _color(codes: str) -> str:
    """Returns the color of a code; empty for the code that ends all colors."""
    found = ""
    for number in (int(code or 0) for code in codes.split(";")):
        if number == 0:
            found = ""
        elif 30 <= number % 60 <= 37:
            found = _NAMES[number % 60 - 30]
        elif 40 <= number % 60 <= 47:
            found = f"on {_NAMES[number % 60 - 40]}"
        else:
            found = found or "strong"
    return found
