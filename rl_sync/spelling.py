"""Spelling: finds the name that a mistyped, shortened or abbreviated word probably means."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

LIKELY = 0.6
"""Minimum likeness at which a name is suggested."""

_LEAST_PART = 3  # Minimum number of letters of a word that counts as a part of a name.


def likeness(word: str, name: str) -> float:
    """Rates how well a word fits a name, from 0 to 1, ignoring case, hyphens and underscores.

    The same letters give 1, initials (`lr` for `learning_rate`) 0.95. Otherwise the rating is the
    share of letters in the same order; below 0.8, a beginning or a part of the name rates higher.
    """
    initials = "".join(part[0] for part in name.lower().replace("-", "_").split("_") if part)
    word, name = (text.lower().replace("-", "").replace("_", "") for text in (word, name))
    if word == name:
        return 1.0
    if len(word) >= 2 and word == initials:
        return 0.95
    ratio = difflib.SequenceMatcher(None, word, name).ratio()
    if ratio >= 0.8:
        return ratio
    short, long = sorted((word, name), key=len)
    if len(short) >= _LEAST_PART and short in long:
        floor = 0.75 if long.startswith(short) else 0.65
        return floor + 0.05 * ratio
    return ratio


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Returns the name that a word fits best; None if it fits none."""
    best = max(names, key=lambda name: likeness(word, name), default=None)
    return best if best is not None and likeness(word, best) >= LIKELY else None


def question(*names: str) -> str:
    """Returns the question whether one of these names was meant."""
    return f"did you mean {' or '.join(names)}?"


def hint(word: object, names: Iterable[str]) -> str:
    """Returns the end of a message about an unknown word: `; did you mean 'name'?` or `.`."""
    near = nearest(str(word), names)
    return "." if near is None else f"; {question(repr(near))}"


def require_one_of(name: str, value: object, allowed: Collection[str]) -> None:
    """Rejects a value that is not allowed.

    Raises:
      ValueError: the message gives the name, all allowed values, and the nearest one; of a Python
        file, how to name what is in it.
    """
    if value not in allowed:
        is_file = str(value).endswith(".py")
        end = f"; name what is in the file: {value}:NAME." if is_file else hint(value, allowed)
        raise ValueError(f"{name}={value!r} is not one of {', '.join(allowed)}{end}")
