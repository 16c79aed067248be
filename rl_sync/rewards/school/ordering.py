"""Items to put in order."""

from __future__ import annotations

import dataclasses
import itertools

from rl_sync.rewards.judgement import Row
from rl_sync.rewards.school.question import Marks, accepted_texts, refuse, shown
from rl_sync.rewards.school.wording import items, plain, same_text


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
