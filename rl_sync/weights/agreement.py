"""Agreement: all processes of one program make the same decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Agree(Protocol):
    """Runs a function in the first process of a program, and gives its result to all processes.

    Every process calls it, at the same point of the same program. If the function raises an
    exception, all processes raise it. Everything that comes from outside, or depends on the time,
    goes through here.
    """

    def __call__(self, what: str, thunk: Callable[[], T]) -> T:
        """Returns the result of `thunk` in the first process.

        Args:
          what: name of this point in the program; it reveals processes that have diverged.
        """


def alone(what: str, thunk: Callable[[], T]) -> T:
    """Calls the function directly: an `Agree` for a program of one process."""
    del what
    return thunk()
