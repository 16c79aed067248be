"""Questions whose answers are lists: blanks to fill in, items to match, and items to order."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Mapping

from rl_sync.rewards.answers.notation import without_bullets
from rl_sync.rewards.judgement import Row
from rl_sync.rewards.school.question import Marks, accepted_texts, refuse, shown
from rl_sync.rewards.school.wording import items, plain, same_text

_PAIR_SEPARATOR = re.compile(r"\s*(?:->|→|=>|\\rightarrow|\\to(?![a-z])|:|=|–|—|\s-\s|-)\s*")
_PAIR_ENDS = re.compile(r"\n+|\s*;\s*|\s*,\s*")


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
    for piece in _PAIR_ENDS.split(without_bullets(answer).strip().strip("{}()[]")):
        parts = _PAIR_SEPARATOR.split(piece.strip(), maxsplit=1)
        if len(parts) == 2 and all(parts):
            pairs.append((parts[0], parts[1]))
        elif match := re.fullmatch(r"(\d+)\s*\)?\s*([A-Za-z])", piece.strip(" .")):
            pairs.append((match[1], match[2]))  # `1A` or `1) A`.
    return pairs


@dataclasses.dataclass(frozen=True)
class OrderQuestion:
    """Items in their right order. Part marks are the share of pairs in the right order.

    An answer must name every item once.
    """

    right: tuple[str, ...]

    @classmethod
    def of(cls, row: Row) -> OrderQuestion:
        """Reads `answer`: the items in order.

        Raises:
          ValueError: the answer is not a list of at least two different texts.
        """
        answer = row.get("answer")
        texts = accepted_texts(answer) if isinstance(answer, list | tuple) else None
        if texts is None or len(texts) < 2:
            raise refuse(row, "answer", "must list at least two items in their order.")
        if any(same_text(a, b) for a, b in itertools.combinations(texts, 2)):
            raise refuse(row, "answer", "must list different items.")
        return cls(texts)

    def mark(self, answer: str) -> Marks:
        """Marks the order of the items that an answer lists."""
        places, given = [], items(answer)
        vote = plain(*given)
        for item in given:
            place = next((i for i, one in enumerate(self.right) if same_text(item, one)), None)
            if place is None:
                return Marks(0.0, f"{shown(item)} is not an item", vote)
            places.append(place)
        if sorted(places) != list(range(len(self.right))):
            why = f"names {len(set(places))} of {len(self.right)} items, or one twice"
            return Marks(0.0, why, vote)
        pairs = list(itertools.combinations(places, 2))
        share = sum(a < b for a, b in pairs) / len(pairs)
        in_order = f"{sum(a < b for a, b in pairs)} of {len(pairs)} pairs are in order"
        return Marks(share, in_order, vote)
