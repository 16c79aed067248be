"""A completion is right when what it ends with is the answer, however it got there."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class FinalAnswer:
    """Compares what stands after the last marker with the answer; white space at the ends is free.

    Attributes:
      marker: what the answer is written after. A completion without it is wrong.
    """

    marker: str = "#"

    def score(self, prompt: str, completion: str, answer: str) -> float:
        """1 if they are the same, else 0."""
        del prompt
        _, marker, final = completion.rpartition(self.marker)
        return float(bool(marker) and final.strip() == answer.strip())
