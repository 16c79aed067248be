"""How the processes of one program come to the same decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Agree(Protocol):
    """Has the first process of a program do something, and gives its result to all of them.

    Every process calls it, at the same point of the same program; what the thunk raises is raised
    in all of them. Whatever is heard from outside, or depends on the time, goes through here.
    """

    def __call__(self, what: str, thunk: Callable[[], T]) -> T:
        """Returns what `thunk` returned in the first process.

        Args:
          what: names the point in the program, to find processes that have gone different ways.
        """


def alone(what: str, thunk: Callable[[], T]) -> T:
    """Agreement in a program of one process."""
    del what
    return thunk()
