"""The end of an episode, as an environment tells it and as rewards read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

REASONS = ("done", "turns", "tokens", "context", "parse error", "time-out", "environment failure")
"""Reasons of the end of an episode."""

CUTS = ("turns", "tokens", "context")
"""Those of a limit of the episode."""

POLICY = "policy"
"""Who plays where a policy does, before the version of its weights."""

FAILURES = ("time-out", "environment failure")
"""Those that say nothing about the policy."""


class Fault(NamedTuple):
    """A beginning of an episode whose environment failed.

    Attributes:
      reason: one of `FAILURES`.
      why: one line about it, such as the exception.
    """

    reason: str
    why: str


RESULTS = ("won", "drawn", "lost")
"""Metrics of a game of several players, of which one is 1: how it ended for who learns."""


class Move(NamedTuple):
    """A reply of a player in a game of several.

    Attributes:
      player: the player, from 0.
      by: who played: `policy` and the versions of its weights, or a scripted opponent's name.
      text: the reply; a long one is cut.
    """

    player: int
    by: str
    text: str


class Ending(NamedTuple):
    """The end of an episode, as its environment told it.

    Attributes:
      rewards: the rewards of the whole episode by name, those of its turns as `turns`; empty if the
        environment failed.
      metrics: other numbers by name.
      reason: one of `REASONS`.
      why: more about the reason, such as the last lines of a traceback.
      turns: replies of the policy.
      segments: runs of append-only tokens, 1 unless a template rewrote what was said before.
      faults: the beginnings of the episode that failed, in their order; if it failed, the last one
        is this end.
      seat: in a game of several players, the one who learns.
      moves: in such a game, all replies in their order.
    """

    rewards: Mapping[str, float]
    metrics: Mapping[str, float]
    reason: str
    why: str
    turns: int
    segments: int = 1
    faults: tuple[Fault, ...] = ()
    seat: int | None = None
    moves: tuple[Move, ...] = ()

    @property
    def failed(self) -> bool:
        """True where the environment failed or took too long, so that nothing was learned."""
        return self.reason in FAILURES
