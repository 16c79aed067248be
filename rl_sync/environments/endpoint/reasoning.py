"""Reasoning of replies: the thoughts at their beginning, as a field of its own."""

from __future__ import annotations

from typing import NamedTuple

from rl_sync.environments.dialogue.tool_call_text import overlap
from rl_sync.thoughts import KNOWN, split

_BEGINS, _ENDS = KNOWN[0].opens, KNOWN[0].closes


class Parted(NamedTuple):
    """A text in two parts, without the marks and the line breaks between them.

    Attributes:
      reasoning: the text of the span; empty if there is none.
      content: the text behind it.
    """

    reasoning: str
    content: str


NOTHING = Parted("", "")


def parted(text: str, begun: str = "") -> Parted:
    """Parts a whole text, of which the prompt has written `begun`."""
    found = split(text, begun, KNOWN[:1], leading_only=True)
    return Parted(found.thoughts, found.answer)


def certainly_parted(text: str) -> Parted:
    """Parts the beginning of a text into what is certain, whatever follows.

    If the text has neither mark, nothing is certain, since the template may have begun the span.
    """
    if text.endswith(_ENDS):  # The next character says whether the mark is quoted.
        text = text[:-1]
    held = text[: len(text) - overlap(text, _ENDS)]
    found = split(text, "", KNOWN[:1], leading_only=True)
    if found.is_thinking:
        return parted(held)
    return Parted(found.thoughts, found.answer) if found.end else NOTHING


def joined(parts: Parted) -> str:
    """Writes a span before a content, as chat templates do."""
    if not parts.reasoning:
        return parts.content
    return f"{_BEGINS}\n{parts.reasoning}\n{_ENDS}\n\n{parts.content}"
