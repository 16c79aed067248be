"""A reward that compares a completion with the answer."""

from __future__ import annotations

import dataclasses

from rl_sync.rewards.judgement import Completion, Judgement, Row, right_text


@dataclasses.dataclass(frozen=True)
class ExactMatch:
    """Compares the completion with `answer`, without white space at either end: 1 or 0."""

    def check(self, row: Row) -> None:
        """Refuses a row whose answer is no text.

        Raises:
          ValueError: it is an object, or a list of other things than texts.
        """
        right_text(row)

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges a completion."""
        given, answer = completion.text.strip(), right_text(row)
        if given == answer:
            return Judgement(1.0, "the same text", answer=given)
        return Judgement(0.0, f"the answer is {answer!r}", answer=given)
