"""Calls between processes: records whose classes name the types of their results.

So a type checker checks both the caller and the function that answers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Self, TypeVar

from rl_sync.isolation.codec import record

R = TypeVar("R")
_BITS = 53  # As many as JSON numbers have in every reader.


class Call(Generic[R]):
    """A call whose result is an R; subclasses are frozen dataclasses of its arguments."""

    def __init_subclass__(cls) -> None:
        record(cls)

    @classmethod
    def answered_by(cls, answer: Callable[[Self], R]) -> Handler:
        """Returns a handler that answers calls of this kind with a function."""
        return Handler(cls, answer)


class Handler(NamedTuple):
    """A kind of call, and the function that answers it."""

    call: type[Call[Any]]
    answer: Callable[[Any], Any]


def request_number() -> int:
    """Returns a number that no other request has, from any process or after any restart."""
    return secrets.randbits(_BITS)
