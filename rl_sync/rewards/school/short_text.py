"""Short answers in words."""

from __future__ import annotations

import dataclasses

from rl_sync.rewards.judgement import Row
from rl_sync.rewards.school.question import Marks, accepted_texts, number_field, refuse, shown
from rl_sync.rewards.school.wording import plain, same_text, token_f1


@dataclasses.dataclass(frozen=True)
class TextQuestion:
    """Accepted texts. Part marks are the best token F1.

    Attributes:
      threshold: the least token F1 of a right answer; with 1 the words must be the same.
    """

    accepted: tuple[str, ...]
    threshold: float

    @classmethod
    def of(cls, row: Row) -> TextQuestion:
        """Reads `answer`, a text or a list of accepted texts, and the optional `threshold`.

        Raises:
          ValueError: a field is missing or malformed.
        """
        accepted = accepted_texts(row.get("answer"))
        if accepted is None:
            raise refuse(row, "answer", "must be a text, or a list of accepted texts.")
        threshold = number_field(row, "threshold", 1.0, greatest=1.0)
        if threshold == 0:
            raise refuse(row, "threshold", "must be above 0: with 0 every answer is right.")
        return cls(accepted, threshold)

    def mark(self, answer: str) -> Marks:
        """Marks an answer by the accepted text that it is nearest to."""
        if any(same_text(answer, one) for one in self.accepted):
            return Marks(1.0, "an accepted text", plain(answer))
        best = max(self.accepted, key=lambda one: token_f1(answer, one))
        f1 = token_f1(answer, best)
        why = f"{shown(answer)} shares an F1 of {f1:.2f} with {shown(best)}"
        # With threshold 1, the same words in another order are wrong, despite an F1 of 1.
        is_near = self.threshold < 1 and f1 >= self.threshold
        return Marks(1.0 if is_near else min(f1, 0.99), why, plain(answer))
