"""The end of an episode, as environments report it and rewards read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

REASONS = ("done", "turns", "tokens", "context", "parse error", "time-out", "environment failure")
"""Reasons of the end of an episode."""

CUTS = ("turns", "tokens", "context")
"""Reasons that mean that the episode hit a limit."""

POLICY = "policy"
"""Player name of a policy in `Move.by`; the version of its weights follows it."""

FAILURES = ("time-out", "environment failure")
"""Reasons that say nothing about the policy: the environment is at fault."""


class Fault(NamedTuple):
    """A failed attempt to play an episode: its environment failed.

    Attributes:
      reason: one of `FAILURES`.
      why: one line about the failure, such as the exception.
    """

    reason: str
    why: str


RESULTS = ("won", "drawn", "lost")
"""Metrics of a game of several players: the one that names the learner's result is 1."""


class Move(NamedTuple):
    """One player's reply in a game of several players.

    Attributes:
      player: the player, from 0.
      by: author of the reply: `policy` and the versions of its weights, or a scripted opponent's
        name.
      text: the reply, cut if it is long.
    """

    player: int
    by: str
    text: str


class Ending(NamedTuple):
    """The end of an episode, as its environment reported it.

    Attributes:
      rewards: rewards of the whole episode by name, with the rewards of its turns as `turns`; empty
        if the environment failed.
      metrics: other numbers by name.
      reason: one of `REASONS`.
      why: more about the reason, such as the last lines of a traceback.
      turns: number of the policy's replies.
      segments: number of runs of append-only tokens; 1 unless a template rewrote earlier messages.
      faults: failed attempts to play the episode, in order; if the episode failed, the last of them
        is this end.
      seat: in a game of several players, the player who learns.
      moves: in a game of several players, all replies in order.
      is_cut: whether a limit ended the policy's last reply.
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
    is_cut: bool = False

    @property
    def failed(self) -> bool:
        """True if the environment failed or took too long, so that nothing can be learned."""
        return self.reason in FAILURES
