"""Marks that stand for images in rendered conversations, until their tokens take their place."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rl_sync.tasks.pictures.places import PLACE

OPEN = "\U000f0003"
"""First character of a mark; contents must have it covered."""

_CLOSE = "\U000f0004"
_MARK = re.compile(f"{OPEN}([0-9]+){_CLOSE}")


def marked(text: str, first: int, place: str = PLACE) -> str:
    """Writes marks at the places of images, with numbers from `first` on."""
    before, *others = text.split(place)
    return before + "".join(f"{mark(first + i)}{text}" for i, text in enumerate(others))


def mark(number: int) -> str:
    """Returns the mark of an image of a conversation."""
    return f"{OPEN}{number}{_CLOSE}"


def has_marks(rendered: str) -> bool:
    """Says whether a text has images."""
    return OPEN in rendered


def texts_and_numbers(rendered: str) -> tuple[Sequence[str], Sequence[int]]:
    """Returns the texts around images, and the images' numbers."""
    parts = _MARK.split(rendered)
    return parts[::2], [int(number) for number in parts[1::2]]
