"""Verdicts of a language model: a score on a scale, as JSON or as a line `Score: N`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from typing import Any, NamedTuple

from rl_sync.thoughts import split

_LINE = re.compile(
    r"^[ \t*_`#]*(?:(?:my|the|overall|total|final)\s+)*score[*_` \t]*[:=：][*_`\s]*"
    r"(?P<number>[-−+]?(?:\d+(?:\.\d*)?|\.\d+))(?:\s*(?:/|out\s+of)\s*(?P<out_of>\d+(?:\.\d+)?))?"
    r"[*_` \t.]*$",
    re.IGNORECASE | re.MULTILINE,
)
_QUOTE = re.compile(r"^[ \t]*>.*$", re.MULTILINE)
_ENDING = re.compile(r"[\s`*_.}\]]*")
_SHOWN_CHARACTERS = 120


class UngradedReplyError(ValueError):
    """Raised for a reply without a verdict."""


class GradedReply(NamedTuple):
    """A verdict.

    Attributes:
      score: the score, from 0 to 1.
      reason: the judge's reason, which may be empty.
    """

    score: float
    reason: str


@dataclasses.dataclass(frozen=True)
class Scale:
    """The scale that a judge's scores are on.

    Attributes:
      low, high: the worst and the best score.

    Raises:
      ValueError: the best is not above the worst.
    """

    low: float = 1
    high: float = 10

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"low={self.low} must be below high={self.high}.")

    def __str__(self) -> str:
        return f"{self.low:g} (worst) to {self.high:g} (best)"

    def read(self, text: str, work: str = "") -> GradedReply:
        """Reads the last verdict of a reply: an object with `score`, or a line `Score: N`.

        A verdict that also stands in the work may be a quotation. It counts only at the end of the
        reply, and then only if no other verdict is lower: a policy cannot raise its own mark.

        Args:
          work: the completion that is judged.

        Raises:
          UngradedReplyError: there is no score, or it is not on the scale.
        """
        text = _QUOTE.sub("", split(text).answer)
        verdicts = _verdicts(text)
        quoted = [_plain(text[one.start : one.end]) in _plain(work) for one in verdicts]
        if quoted and quoted[-1] and not _ENDING.fullmatch(text, verdicts[-1].end):
            verdicts = [
                one for one, is_quoted in zip(verdicts, quoted, strict=True) if not is_quoted
            ]
            quoted = [False] * len(verdicts)
        if not verdicts:
            raise UngradedReplyError(f"there is no score in {_short(text)!r}")
        if not quoted[-1]:
            return self._graded(verdicts[-1])
        last, lowest = self._graded(verdicts[-1]), []
        for one in verdicts[:-1]:
            with contextlib.suppress(UngradedReplyError):
                lowest.append(self._graded(one))
        return min([last, *lowest], key=lambda graded: graded.score)

    def _graded(self, verdict: _Verdict) -> GradedReply:
        if verdict.out_of is not None and verdict.out_of != self.high:
            shown = f"Score: {verdict.score:g}/{verdict.out_of:g}"
            raise UngradedReplyError(f"{shown!r} is not on the scale from {self}")
        return GradedReply(self._share(verdict.score), verdict.reason)

    def _share(self, value: Any) -> float:
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = float(value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not self.low <= value <= self.high:
            raise UngradedReplyError(
                f"the score {_short(repr(value))} is not on the scale from {self}"
            )
        return (value - self.low) / (self.high - self.low)


SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "verdict",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"reason": {"type": "string"}, "score": {"type": "number"}},
            "required": ["reason", "score"],
            "additionalProperties": False,
        },
    },
}
"""`response_format` of an OpenAI-compatible request; the reason comes before the score."""


class _Verdict(NamedTuple):
    """A score in a reply, and where it stands."""

    start: int
    end: int
    score: Any
    reason: str
    out_of: float | None = None


def _verdicts(text: str) -> list[_Verdict]:
    """Returns the verdicts of a reply in their order: JSON objects with `score`, and lines."""
    objects = _objects(text)
    found = [
        _Verdict(start, end, value["score"], str(value.get("reason", "")))
        for start, end, value in objects
        if "score" in value
    ]
    for match in _LINE.finditer(text):
        if not any(start <= match.start() < end for start, end, _ in objects):
            reason = (text[: match.start()] + text[match.end() :]).strip()
            score = float(match["number"].replace("−", "-"))
            out_of = float(match["out_of"]) if match["out_of"] else None
            found.append(_Verdict(match.start(), match.end(), score, reason, out_of))
    return sorted(found, key=lambda one: one.start)


def _objects(text: str) -> list[tuple[int, int, dict[str, Any]]]:
    """Returns the outermost JSON objects of a text, with start and end.

    Inside braces that are not JSON, objects do not count: they may be quotations in a reason.
    """
    decoder, found, at, depth, seen = json.JSONDecoder(), [], text.find("{"), 0, 0
    while at >= 0:
        depth += text.count("{", seen, at) - text.count("}", seen, at)
        seen = end = at
        if depth <= 0:
            with contextlib.suppress(ValueError, RecursionError):
                value, end = decoder.raw_decode(text, at)
                found.append((at, end, value))
                seen = end
        at = text.find("{", max(end, at + 1))
    return found


def _plain(text: str) -> str:
    """Returns a text without what a quotation may change: white space, case and emphasis."""
    return re.sub(r"[\s*_`#.]", "", text).casefold()


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
