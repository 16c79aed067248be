"""A calculator: the policy writes an expression between two signs."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from rl_sync.environments.interface import Message, Outcome, Reply, Turn

_NUMBER = re.compile(r"\d{1,18}")
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


class Calculator:
    """Answers calls such as `<12*34>`; any other reply is the final answer.

    The environment's turn after a call is the result and `=`, or `error=`. The final answer counts
    for 1 if it is the task's `answer`, else for 0. The metric `calls` counts calls.

    Args:
      opening, closing: signs around a call; the closing sign ends the reply.
    """

    inline = True
    charset = "0123456789+-*=<>eor"

    def __init__(self, opening: str = "<", closing: str = ">") -> None:
        if not opening or not closing:
            raise ValueError("opening and closing must be signs; they are empty.")
        self._opening, self._closing = opening, closing
        self._answer, self._calls = "", 0

    def reset(self, task: Mapping[str, Any], seed: int) -> Turn:
        """Asks the problem of the row."""
        del seed
        self._answer, self._calls = str(task["answer"]).strip(), 0
        return self._turn("user", str(task["prompt"]))

    def step(self, reply: Reply) -> Turn | Outcome:
        """Evaluates a call, or judges the final answer."""
        text = reply.text.strip()
        if text.endswith(self._closing):
            self._calls += 1
            asked = text.removesuffix(self._closing).rpartition(self._opening)[2]
            return self._turn("tool", f"{worked_out(asked)}=")
        right = float(reply.answer.strip() == self._answer)
        return Outcome({"answer": right}, {"calls": self._calls})

    def close(self) -> None:
        """Does nothing."""

    def _turn(self, role: str, content: str) -> Turn:
        return Turn((Message(role, content),), stop_strings=(self._closing,))


def worked_out(text: str) -> str:
    """Returns the value of a sum, difference or product of two whole numbers; else `error`."""
    found = re.fullmatch(r"\s*(\d+)\s*([-+*])\s*(\d+)\s*", text)
    if found is None or not all(_NUMBER.fullmatch(found[i]) for i in (1, 3)):
        return "error"
    return str(_OPERATIONS[found[2]](int(found[1]), int(found[3])))
