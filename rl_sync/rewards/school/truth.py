"""Statements that are true or false."""

from __future__ import annotations

import dataclasses

from rl_sync.rewards.judgement import Row
from rl_sync.rewards.school.question import Marks, refuse
from rl_sync.rewards.school.wording import tokens

_MEANINGS = {
    **dict.fromkeys(("true", "t", "yes", "y", "right", "correct"), True),
    **dict.fromkeys(("false", "f", "no", "n", "wrong", "incorrect", "not true"), False),
}


@dataclasses.dataclass(frozen=True)
class TruthQuestion:
    """A statement, and whether it is true."""

    right: bool

    @classmethod
    def of(cls, row: Row) -> TruthQuestion:
        """Reads `answer`: true or false, as JSON or as a word.

        Raises:
          ValueError: it is something else.
        """
        answer = row.get("answer")
        right = answer if isinstance(answer, bool) else truth(str(answer))
        if right is None:
            raise refuse(row, "answer", "must be true or false.")
        return cls(right)

    def mark(self, answer: str) -> Marks:
        """Marks the truth that an answer begins with."""
        given = truth(answer)
        if given is None:
            return Marks(0.0, f"says neither true nor false; right: {self.right}")
        return Marks(float(given == self.right), f"says {given}; right: {self.right}")


def truth(text: str) -> bool | None:
    """Reads true or false, which may be followed by a reason behind a comma or a full stop."""
    head = text.strip().replace(",", ".").replace("\n", ".").split(".")[0]
    return _MEANINGS.get(" ".join(tokens(head)))
