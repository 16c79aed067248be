"""A reward that compares a completion with the answer."""

from __future__ import annotations

import dataclasses

from rl_sync.rewards.judgement import Completion, Judgement, Row


@dataclasses.dataclass(frozen=True)
class ExactMatch:
    """Compares the completion with `answer`, without white space at either end: 1 or 0."""

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges a completion."""
        given, answer = completion.text.strip(), str(row["answer"]).strip()
        if given == answer:
            return Judgement(1.0, "the same text", answer=given)
        return Judgement(0.0, f"the answer is {answer!r}", answer=given)
