"""Reasoning of replies: the span `<think>…</think>` at their beginning, as a field of its own."""

from __future__ import annotations

from typing import NamedTuple

from rl_sync.environments.dialogue.tool_call_text import overlap

_BEGINS, _ENDS = "<think>", "</think>"


class Parted(NamedTuple):
    """A text in two parts, without the marks and the line breaks between them.

    Attributes:
      reasoning: the text of the span; empty if there is none.
      content: the text behind it.
    """

    reasoning: str
    content: str


NOTHING = Parted("", "")


def parted(text: str) -> Parted:
    """Parts a whole text.

    A template may write the mark that begins the span, so a text may have only the mark at its end.
    """
    reasoning, mark, content = text.partition(_ENDS)
    if mark:
        return Parted(_unmarked(reasoning).strip("\n"), content.lstrip("\n"))
    if text.lstrip().startswith(_BEGINS):
        return Parted(_unmarked(text).strip("\n"), "")
    return Parted("", text)


def certainly_parted(text: str) -> Parted:
    """Parts the beginning of a text into what is certain, whatever follows.

    If the text has neither mark, nothing is certain, since the template may have begun the span.
    """
    if _ENDS in text:
        return parted(text)
    if not text.lstrip().startswith(_BEGINS):
        return NOTHING
    return parted(text[: len(text) - overlap(text, _ENDS)])


def joined(parts: Parted) -> str:
    """Writes a span before a content, as chat templates do."""
    if not parts.reasoning:
        return parts.content
    return f"{_BEGINS}\n{parts.reasoning}\n{_ENDS}\n\n{parts.content}"


def _unmarked(reasoning: str) -> str:
    """Leaves out the mark that begins a span."""
    begun = reasoning.lstrip()
    return begun.removeprefix(_BEGINS) if begun.startswith(_BEGINS) else reasoning
