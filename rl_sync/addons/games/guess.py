"""A game: find a hidden number, with an answer to each guess: too small or too large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_sync.environments.interface import Message, Outcome, Reply, Turn

SMALLER, LARGER, ASKS = "<", ">", "?"


class Guess:
    """Hides the row's `answer`, a number. A guess ends with `?`.

    After a guess the environment says `<` if the hidden number is smaller, `>` if it is larger. The
    reward `found` is 1 if it is found with the allowed guesses, else 0. Anything but a number ends
    the game. The metric `guesses` counts guesses.

    Args:
      guesses: maximum number of guesses.
    """

    inline = True
    charset = f"0123456789{SMALLER}{LARGER}{ASKS}"

    def __init__(self, guesses: int = 5) -> None:
        if guesses < 1:
            raise ValueError(f"guesses={guesses} must be at least 1.")
        self._most, self._made, self._hidden = guesses, 0, 0

    def reset(self, task: Mapping[str, Any], seed: int) -> Turn:
        """Begins a game."""
        del seed
        self._made, self._hidden = 0, int(task["answer"])
        return self._turn(str(task["prompt"]))

    def step(self, reply: Reply) -> Turn | Outcome:
        """Compares a guess with the hidden number."""
        self._made += 1
        text = reply.answer.strip().removesuffix(ASKS)
        if not (text.isdecimal() and text.isascii() and len(text) < 10):
            return Outcome({"found": 0.0}, {"guesses": self._made}, reason="parse error")
        guess = int(text)
        if guess == self._hidden:
            return Outcome({"found": 1.0}, {"guesses": self._made})
        if self._made == self._most:
            return Outcome({"found": 0.0}, {"guesses": self._made})
        return self._turn(SMALLER if self._hidden < guess else LARGER)

    def close(self) -> None:
        """Does nothing."""

    def _turn(self, content: str) -> Turn:
        return Turn((Message("user", content),), stop_strings=(ASKS,))
