"""Texts of a run as the page shows them: nothing invisible, tokens with the colours of numbers."""

from __future__ import annotations

import datetime
import time
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from rl_sync.observe.rollouts import Rollout

_KEPT = "\n\t"
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_LOGPROB_BOUNDS = (-0.01, -0.05, -0.2, -0.5, -1.0, -2.0, -4.0, -7.0)
"""Bounds of the colours of log-probabilities, in nats; below the last one is the strongest."""

VERSION_COLOURS = 6


def visible(text: str) -> str:
    """Replaces characters that cannot be seen, or that reorder text, by signs that can."""
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else f"\\u{{{code:x}}}"


class Token(NamedTuple):
    """A token to show: its text, the classes of its colours, and words about it."""

    text: str
    classes: str
    title: str


def tokens(one: Rollout) -> list[Token]:
    """Returns the tokens after the prompt.

    Classes: `l0` (nearly certain) to `l8` by log-probability, `v0` to `v5` by version, `said` for
    what the environment wrote, and `masked` for tokens that the loss does not learn from.
    """
    versions, mask = list(_spread(one.versions)), list(_spread(one.mask))
    found = []
    for place, text in enumerate(one.tokens):
        logprob = one.logprobs[place] if place < len(one.logprobs) else None
        version = versions[place] if place < len(versions) else -1
        classes, words = [], [f"token {place}"]
        if place < len(one.ids):
            words.append(f"id {one.ids[place]}")
        if logprob is not None:
            classes.append(f"l{sum(logprob < bound for bound in _LOGPROB_BOUNDS)}")
            words.append(f"logprob {logprob:.3f}")
        if version >= 0:
            classes.append(f"v{version % VERSION_COLOURS}")
            words.append(f"version {version}")
        else:
            classes.append("said")
            words.append("written by the environment")
        if place < len(mask) and not mask[place]:
            classes.append("masked")
            words.append("not learned from")
        shown = visible(text).replace("\n", "↵\n") or "∅"
        found.append(Token(shown, " ".join(classes), ", ".join(words)))
    return found


def _spread(runs: list[list[int]]) -> Iterator[int]:
    for value, count in runs:
        for _ in range(count):
            yield value


def number(value: float | None, digits: int = 3) -> str:
    """Writes a number with some digits, all of them of large ones, and – for none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def ago(secs: float) -> str:
    """Writes how long ago a time in Unix seconds is."""
    if not secs:
        return "never"
    past = max(0.0, time.time() - secs)
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if past >= 2 * size:
            return f"{past / size:.0f} {unit} ago"
    return f"{past:.0f} s ago"


def at(secs: float) -> str:
    """Writes a time in Unix seconds for this machine's time zone."""
    return datetime.datetime.fromtimestamp(secs).strftime("%Y-%m-%d %H:%M:%S") if secs else "–"
