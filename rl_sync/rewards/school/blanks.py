"""Blanks to fill in, each with its accepted spellings."""

from __future__ import annotations

import dataclasses

from rl_sync.rewards.judgement import Row
from rl_sync.rewards.school.question import Marks, accepted_texts, refuse, shown
from rl_sync.rewards.school.wording import items, plain, same_text


@dataclasses.dataclass(frozen=True)
class BlanksQuestion:
    """The accepted spellings of each blank. Part marks are the share of right blanks."""

    accepted: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, row: Row) -> BlanksQuestion:
        """Reads `answer`: a text for one blank, or a list with a text or a list for each blank.

        Raises:
          ValueError: it is something else.
        """
        answer = row.get("answer")
        listed = answer if isinstance(answer, list | tuple) else [answer]
        accepted = [accepted_texts(one) for one in listed]
        if not accepted or not all(accepted):
            raise refuse(
                row, "answer", "must list, for each blank, a text or a list of accepted texts."
            )
        return cls(tuple(one for one in accepted if one))

    def mark(self, answer: str) -> Marks:
        """Marks the blanks in their order; too many answers get no marks."""
        given = items(answer, len(self.accepted))
        vote = plain(*given)
        if len(given) > len(self.accepted):
            return Marks(0.0, f"fills {len(given)} blanks of {len(self.accepted)}", vote)
        wrong = [
            f"blank {number}: {shown(text)}, not {shown(accepted[0])}"
            for number, (text, accepted) in enumerate(
                zip([*given, *[""] * len(self.accepted)], self.accepted, strict=False), start=1
            )
            if not any(same_text(text, one) for one in accepted)
        ]
        share = 1 - len(wrong) / len(self.accepted)
        return Marks(share, wrong[0] if wrong else "every blank is right", vote)
