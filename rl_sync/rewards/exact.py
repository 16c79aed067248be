"""Rewards that compare a completion, or its end, with the answer as text."""

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


@dataclasses.dataclass(frozen=True)
class FinalAnswer:
    """Compares the text after the last marker with `answer`, without white space around: 1 or 0.

    Attributes:
      marker: the text in front of the answer. A completion without it is wrong.

    Raises:
      ValueError: the marker is empty.
    """

    marker: str = "#"

    def __post_init__(self) -> None:
        if not self.marker:
            raise ValueError("final_answer's marker is empty: give the text before the answer.")

    def check(self, row: Row) -> None:
        """Refuses a row whose answer is no text.

        Raises:
          ValueError: it is an object, or a list of other things than texts.
        """
        right_text(row)

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges a completion."""
        _, marker, final = completion.text.rpartition(self.marker)
        if not marker:
            return Judgement(0.0, f"no {self.marker!r}")
        given = final.strip()
        right = given == right_text(row)
        return Judgement(float(right), f"final answer {given!r}", answer=given)
