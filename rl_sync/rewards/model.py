"""What a reward model is: a judge of completions, importable without JAX."""

from __future__ import annotations

from typing import Protocol


class RewardModel(Protocol):
    """Judges one completion at a time; deterministic, and safe to run in any process."""

    def score(self, prompt: str, completion: str, answer: str) -> float:
        """The reward of a completion: 1 for what is wanted, 0 for what is not."""
        ...
