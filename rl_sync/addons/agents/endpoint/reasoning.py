"""Reasoning of replies: the thoughts at their beginning, as a field of its own."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from rl_sync.environments.dialogue.tool_call_text import overlap
from rl_sync.thoughts import KNOWN, ThoughtMarks, split


class Parted(NamedTuple):
    """A text in two parts, without the marks and the line breaks between them.

    Attributes:
      reasoning: the text of the span; empty if there is none.
      content: the text behind it.
    """

    reasoning: str
    content: str


NOTHING = Parted("", "")


@dataclasses.dataclass(frozen=True)
class Reasoning:
    """Form of the reasoning at the beginning of replies.

    Attributes:
      is_separate: whether it is a field of its own, and not part of the content.
      marks: pairs of marks around it; the first one is written around the reasoning that an agent
        sends back.
    """

    is_separate: bool = False
    marks: tuple[ThoughtMarks, ...] = KNOWN

    def parted(self, text: str, begun: str = "") -> Parted:
        """Parts a whole text, of which the prompt has written `begun`."""
        if not self.is_separate:
            return Parted("", text)
        found = split(text, begun, self.marks, leading_only=True)
        return Parted(found.thoughts, found.answer)

    def certainly_parted(self, text: str) -> Parted:
        """Parts the beginning of a text into what is certain, whatever follows.

        If the text has no mark, nothing is certain, since the template may have begun the span.
        """
        if not (self.is_separate and self.marks):
            return Parted("", text)
        ends = [pair.closes for pair in self.marks]
        if text.endswith(tuple(ends)):  # The next character says whether the mark is quoted.
            text = text[:-1]
        held = text[: len(text) - max(overlap(text, end) for end in ends)]
        found = split(text, "", self.marks, leading_only=True)
        if found.is_thinking:
            return self.parted(held)
        return Parted(found.thoughts, found.answer) if found.end else NOTHING

    def joined(self, parts: Parted) -> str:
        """Writes a span before a content, as chat templates do."""
        if not parts.reasoning or self.has_span(parts.content):
            return parts.content
        opens, closes, *_ = (self.marks or KNOWN)[0]
        return f"{opens}\n{parts.reasoning}\n{closes}\n\n{parts.content}"

    def has_span(self, content: str) -> bool:
        """Says whether a content begins with a span itself."""
        return content.lstrip().startswith(tuple(pair.opens for pair in self.marks or KNOWN))
