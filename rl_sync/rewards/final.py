"""A reward that compares the end of a completion with the answer, whatever comes before it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class FinalAnswer:
    """Compares the text after the last marker with the answer, without white space around.

    Attributes:
      marker: the text in front of the answer. A completion without it is wrong.
    """

    marker: str = "#"

    def score(self, prompt: str, completion: str, answer: str) -> float:
        """Returns 1 if they are the same, else 0."""
        del prompt
        _, marker, final = completion.rpartition(self.marker)
        return float(bool(marker) and final.strip() == answer.strip())
