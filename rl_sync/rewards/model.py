"""The interface of a reward model, a judge of completions. It does not import JAX."""

from __future__ import annotations

from typing import Protocol


class RewardModel(Protocol):
    """Judges one completion at a time; deterministic, and safe to run in any process."""

    def score(self, prompt: str, completion: str, answer: str) -> float:
        """Returns the reward of a completion: 1 for a right one, 0 for a wrong one."""
        ...
