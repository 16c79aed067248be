"""Items to match with each other."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping

from rl_sync.rewards.answers.notation import without_bullets
from rl_sync.rewards.judgement import Row
from rl_sync.rewards.school.question import Marks, accepted_texts, refuse, shown
from rl_sync.rewards.school.wording import plain, same_text

_SEPARATOR = re.compile(r"\s*(?:->|→|=>|\\rightarrow|\\to(?![a-z])|:|=|–|—|\s-\s|-)\s*")
_ENDS = re.compile(r"\n+|\s*;\s*|\s*,\s*")


@dataclasses.dataclass(frozen=True)
class MatchQuestion:
    """Pairs of items. Part marks are the share of right pairs."""

    right: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, row: Row) -> MatchQuestion:
        """Reads `answer`, a mapping from each item to its match or a list of accepted matches.

        Raises:
          ValueError: it is something else.
        """
        answer = row.get("answer")
        pairs = (
            {str(left): accepted_texts(right) for left, right in answer.items()}
            if isinstance(answer, Mapping)
            else {}
        )
        if not pairs or not all(pairs.values()):
            raise refuse(row, "answer", "must map each item to the item that fits it.")
        return cls({left: right for left, right in pairs.items() if right})

    def mark(self, answer: str) -> Marks:
        """Marks the pairs of an answer; an item that is named twice gets no marks."""
        given = _pairs(answer, list(self.right))
        wrong = []
        for left, accepted in self.right.items():
            named = [right for item, right in given if same_text(item, left)]
            if len(named) != 1 or not any(same_text(named[0], one) for one in accepted):
                wrong.append(f"{left}: {shown(', '.join(named))}, not {shown(accepted[0])}")
        share = 1 - len(wrong) / len(self.right)
        vote = plain(*sorted(f"{left}: {right}" for left, right in given))
        return Marks(share, wrong[0] if wrong else "every pair is right", vote)


def _pairs(answer: str, lefts: list[str]) -> list[tuple[str, str]]:
    try:
        found = json.loads(answer)
        if isinstance(found, dict):
            return [(str(left), str(right)) for left, right in found.items()]
    except (ValueError, RecursionError):
        pass
    pairs = []
    for piece in _ENDS.split(without_bullets(answer).strip().strip("{}()[]")):
        parts = _SEPARATOR.split(piece.strip(), maxsplit=1)
        if len(parts) == 2 and all(parts):
            pairs.append((parts[0], parts[1]))
        elif match := re.fullmatch(r"(\d+)\s*\)?\s*([A-Za-z])", piece.strip(" .")):
            pairs.append((match[1], match[2]))  # `1A` or `1) A`.
    return pairs
