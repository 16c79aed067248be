"""Statements that are true or false."""

from __future__ import annotations

import dataclasses
import re

from rl_sync.rewards.answers.notation import unified
from rl_sync.rewards.judgement import Row
from rl_sync.rewards.school.question import Marks, refuse
from rl_sync.rewards.school.wording import tokens

_END = re.compile(r"[.,;:!\n]|\s(?:because|since|as|for)\s|\s[-–—]\s", re.IGNORECASE)
_QUOTED = re.compile(r'"[^"]*"')
_ADVERB = re.compile(r"(?:so|thus|hence|therefore)[,\s]\s*", re.IGNORECASE)
_LEAD = re.compile(
    r"(?:(?:it|that)'s|(?:it|this|that|(?:(?:this|that|given|above) )*"
    r"(?:statement|claim|sentence|assertion|proposition)(?: (?:given|above))?)"
    r" (?:is|was|must be)) "
)
"""The words before a verdict, such as `The statement is`, without articles."""
_MEANINGS = {
    **dict.fromkeys(("true", "t", "yes", "y", "right", "correct", "not false"), True),
    **dict.fromkeys(
        (
            "false",
            "f",
            "no",
            "n",
            "wrong",
            "incorrect",
            "not true",
            "not correct",
            "not right",
            "untrue",
        ),
        False,
    ),
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
        """Marks an answer by the verdict that it begins with."""
        given = truth(answer)
        if given is None:
            return Marks(0.0, f"says neither true nor false; right: {self.right}")
        return Marks(float(given == self.right), f"says {given}; right: {self.right}", str(given))


def truth(text: str) -> bool | None:
    """Reads true or false; a comma or a full stop and a reason may follow."""
    head = _END.split(_ADVERB.sub("", _unquoted(text)), maxsplit=1)[0]
    words = " ".join(tokens(head))
    return _MEANINGS.get(_LEAD.sub("", words) if words not in _MEANINGS else words)


def _unquoted(text: str) -> str:
    """Leaves out the statement itself: `The statement "…" is false`."""
    return _QUOTED.sub("", unified(text)) if "statement" in text.lower() else text.strip()
