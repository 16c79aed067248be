"""Prepares a run's texts for HTML: shows invisible characters, and colours tokens."""

from __future__ import annotations

import datetime
import math
import time
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from rl_sync.records.outages import LostTime
from rl_sync.records.rollouts.rollout_records import Rollout
from rl_sync.records.run_records import SILENT, RunRecords

_KEPT = "\n\t"
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_NAT_BOUNDS = (0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 7.0)
"""Bounds of the colours of −log π and of entropies; values above the last get the strongest."""
_RATIO_BOUNDS = (0.02, 0.1, 0.2, 0.5)
"""Bounds of the colours of |log ratio|, in nats."""
_LEAST_RATIO = 1e-6
_ADVANTAGE_BOUNDS = (0.0, 0.25, 0.75, 1.5)
"""Bounds of the colours of |advantage|."""

VERSION_COLOURS = 6

Value = TypeVar("Value")


def visible(text: str) -> str:
    """Replaces characters that are invisible, or that reorder text, by visible signs."""
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else f"\\u{{{code:x}}}"


class Token(NamedTuple):
    """A token for display: its text, the classes of its colours, and a description."""

    text: str
    classes: str
    title: str


def tokens(one: Rollout) -> list[Token]:
    """Returns the tokens after the prompt.

    Classes: `l0` (nearly certain) to `l8` by log-probability, `e0` to `e8` by entropy, `u1` to `u4`
    for ratios above 1 and `d1` to `d4` for those below, `g1` to `g4` for positive advantages and
    `b1` to `b4` for negative ones, `v0` to `v5` by version, `said` for the environment's tokens,
    and `masked` for tokens that the loss does not learn from.
    """
    versions, mask = list(_spread(one.versions)), list(_spread(one.mask))
    found = []
    for place, text in enumerate(one.tokens):
        version = _at(versions, place, -1)
        learned = bool(_at(mask, place, 1))
        classes, words = [], [f"token {place}"]
        if place < len(one.ids):
            words.append(f"id {one.ids[place]}")
        for name, of_name in _figures(one, place, learned):
            classes.append(of_name.colour)
            words.append(f"{name} {of_name.value:.4g}")
        if version >= 0:
            classes.append(f"v{version % VERSION_COLOURS}")
            words.append(f"version {version}")
        else:
            classes.append("said")
            words.append("written by the environment")
        if not learned:
            classes.append("masked")
            words.append("not learned from")
        shown = visible(text).replace("\n", "↵\n") or "∅"
        found.append(Token(shown, " ".join(filter(None, classes)), ", ".join(words)))
    return found


class _Coloured(NamedTuple):
    """A number, and the class of its colour, which is empty for no colour."""

    value: float
    colour: str


def _figures(one: Rollout, place: int, learned: bool) -> Iterator[tuple[str, _Coloured]]:
    """Yields the known numbers of a token by name."""
    if (logprob := _at(one.logprobs, place)) is not None:
        yield "logprob", _Coloured(logprob, f"l{_level(-logprob, _NAT_BOUNDS)}")
    if (ratio := _at(one.ratios, place)) is not None:
        log_ratio = math.log(max(ratio, _LEAST_RATIO))
        yield "ratio", _Coloured(ratio, _signed(log_ratio, _RATIO_BOUNDS, "u", "d"))
    if (entropy := _at(one.entropies, place)) is not None:
        yield "entropy", _Coloured(entropy, f"e{_level(entropy, _NAT_BOUNDS)}")
    advantage = _at(one.token_advantages, place) if one.token_advantages else one.advantage
    if advantage is not None and learned:
        yield "advantage", _Coloured(advantage, _signed(advantage, _ADVANTAGE_BOUNDS, "g", "b"))


def _level(value: float, bounds: Sequence[float]) -> int:
    return sum(value > bound for bound in bounds)


def _signed(value: float, bounds: Sequence[float], above: str, below: str) -> str:
    """Returns the class of a number by its size and its sign; empty if it is near 0."""
    level = _level(abs(value), bounds)
    return f"{above if value > 0 else below}{level}" if level else ""


def _at(values: Sequence[Value], place: int, none: Any = None) -> Value | Any:
    """Returns the value at a position, or `none` if there is no value."""
    return values[place] if place < len(values) else none


def _spread(runs: list[list[int]]) -> Iterator[int]:
    for value, count in runs:
        for _ in range(count):
            yield value


def number(value: float | None, digits: int = 3) -> str:
    """Formats a number with a few digits (large numbers with all), and None as –."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def state(run: RunRecords) -> str:
    """Describes the state of a run, or how long it has been silent."""
    found = run.state
    return f"no record for {duration(run.silent_secs)}" if found == SILENT else found


def lost(time_lost: LostTime) -> str:
    """Describes the time that restarts cost a run."""
    each = f", {time_lost.secs_per_failure:,.0f} s each" if len(time_lost.outages) > 1 else ""
    return (
        "of the time led to steps that count;"
        f" {len(time_lost.outages)} restarts lost {time_lost.lost_secs:,.0f} s{each}"
    ).replace(" 1 restarts", " 1 restart")


def ago(secs: float) -> str:
    """Writes how long ago a time in Unix seconds is."""
    if not secs:
        return "never"
    return f"{duration(max(0.0, time.time() - secs))} ago"


def duration(secs: float) -> str:
    """Writes a number of seconds in the unit that fits."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if secs >= 2 * size:
            return f"{secs / size:.0f} {unit}"
    return f"{secs:.0f} s"


def at(secs: float) -> str:
    """Writes a time in Unix seconds for this machine's time zone."""
    return datetime.datetime.fromtimestamp(secs).strftime("%Y-%m-%d %H:%M:%S") if secs else "–"
