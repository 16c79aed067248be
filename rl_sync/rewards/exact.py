"""A completion is right when it is the answer."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ExactMatch:
    """Compares the completion with the answer, white space at either end left out."""

    def score(self, prompt: str, completion: str, answer: str) -> float:
        """1 if they are the same, else 0."""
        del prompt
        return float(completion.strip() == answer.strip())
