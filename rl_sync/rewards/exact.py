"""A reward that compares a completion with the answer."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ExactMatch:
    """Compares the completion with the answer, without white space at either end."""

    def score(self, prompt: str, completion: str, answer: str) -> float:
        """Returns 1 if they are the same, else 0."""
        del prompt
        return float(completion.strip() == answer.strip())
