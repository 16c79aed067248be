"""Brackets in a text: their depth, and separators outside of them."""

from __future__ import annotations

_OPENING, _CLOSING = "([{", ")]}"


def split_outside(text: str, separator: str) -> list[str]:
    """Splits at separators that stand outside of brackets, and strips the pieces."""
    pieces, start, depth = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth == 0 and text.startswith(separator, index):
            pieces.append(text[start:index])
            start = index + len(separator)
    return [piece.strip() for piece in [*pieces, text[start:]]]


def open_brackets(text: str) -> int:
    """Returns the number of brackets that are open at the end of a text."""
    return sum((character in _OPENING) - (character in _CLOSING) for character in text)


def are_balanced(text: str) -> bool:
    """Says whether every bracket is closed, and none closes before it opens."""
    depth = 0
    for character in text:
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth < 0:
            return False
    return depth == 0
