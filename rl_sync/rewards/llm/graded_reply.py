"""Verdicts of a language model: a score on a scale, as JSON or as a line `Score: N`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from typing import Any, NamedTuple

_LINE = re.compile(
    r"^\W*(?:final\s+)?score\W*[:=]\W*(-?\d+(?:\.\d+)?)\s*(?:/\s*(\d+(?:\.\d+)?))?\W*$",
    re.IGNORECASE | re.MULTILINE,
)
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

    def read(self, text: str) -> GradedReply:
        """Reads a reply: an object with `score` or, if it has none, its last line `Score: N`.

        Raises:
          UngradedReplyError: there is no score, or it is not on the scale.
        """
        for found in _objects(text):
            if "score" in found:
                reason = found.get("reason", "")
                return GradedReply(self._share(found["score"]), str(reason))
        lines = list(_LINE.finditer(text))
        if not lines:
            raise UngradedReplyError(f"there is no score in {_short(text)!r}")
        number, out_of = lines[-1].groups()
        if out_of is not None and float(out_of) != self.high:
            raise UngradedReplyError(f"{lines[-1][0].strip()!r} is not on the scale from {self}")
        reason = (text[: lines[-1].start()] + text[lines[-1].end() :]).strip()
        return GradedReply(self._share(float(number)), reason)

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


def _objects(text: str) -> list[dict[str, Any]]:
    """Returns the outermost JSON objects in a text, the last one first."""
    decoder, found, at = json.JSONDecoder(), [], text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            found.append(value)
        at = text.find("{", end)
    return found[::-1]


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
