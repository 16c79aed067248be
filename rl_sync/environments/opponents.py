"""Opponents in games of several players: their names, and the scripted ones."""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from rl_sync.environments.interface import Message
from rl_sync.expression import Term, parse_call
from rl_sync.isolation.codec import record
from rl_sync.references import is_reference, resolve
from rl_sync.spelling import hint

SELF, OLDER = "self", "older"
"""The policy itself, and older versions of it."""

VERSIONS = "versions"
"""Option of `older`: how many older versions there are at most."""

_VERSIONS = 4


@dataclasses.dataclass(frozen=True)
class View:
    """A scripted player's view of the game at its turn.

    Attributes:
      messages: the player's conversation so far: the game's messages, and its own replies.
      moves: legal replies; empty if the game does not list them.
      player: number of the player, from 0.
      players: number of players.
      random: the only source of the player's random choices.
    """

    messages: tuple[Message, ...]
    moves: tuple[str, ...]
    player: int
    players: int
    random: random.Random

    @property
    def text(self) -> str:
        """The game's latest message."""
        return self.messages[-1].content


Script = Callable[[View], str | Awaitable[str]]
"""A scripted player: a function from its view to its reply."""


def chooses_at_random(view: View) -> str:
    """Chooses any of the legal moves.

    Raises:
      ValueError: the game does not tell them.
    """
    return view.random.choice(_moves(view))


def chooses_first(view: View) -> str:
    """Chooses the first legal move.

    Raises:
      ValueError: the game does not tell them.
    """
    return _moves(view)[0]


SCRIPTS: dict[str, Script] = {"random": chooses_at_random, "first": chooses_first}
"""The scripted players of the package."""


@record
class Seating(NamedTuple):
    """The players of an episode.

    Attributes:
      number: number of the episode's group; seats rotate with it.
      seat: player that learns; None for `number` modulo the number of players.
      opponent: who plays all other seats; see `parse_opponent`.
    """

    number: int
    seat: int | None
    opponent: str


def parse_opponent(name: str) -> Term:
    """Reads the name of an opponent, with its options.

    Raises:
      ValueError: there is no opponent of that name, or it has no such option.
    """
    term = parse_call(name)
    if is_reference(term.name):
        return term
    known = (SELF, OLDER, *SCRIPTS)
    if term.name not in known:
        raise ValueError(
            f"There is no opponent {term.name!r}{hint(term.name, known)} It is one of"
            f" {', '.join(known)}, or a function of your own, path/to/file.py:function."
        )
    takes = {VERSIONS} if term.name == OLDER else set()
    if unknown := sorted(term.options.keys() - takes):
        raise ValueError(f"The opponent {term.name} has no option {unknown[0]!r}.")
    count = term.options.get(VERSIONS, _VERSIONS)
    if type(count) is not int or count < 1:
        raise ValueError(f"The opponent {name}: {VERSIONS} is a number of at least 1, not {count}.")
    return term


def older_versions(name: str) -> int:
    """Returns the number of older versions that an opponent is drawn from; 0 if there are none."""
    term = parse_opponent(name)
    return int(term.options.get(VERSIONS, _VERSIONS)) if term.name == OLDER else 0


def is_scripted(name: str) -> bool:
    """Says whether an opponent is scripted, and not a policy."""
    return parse_opponent(name).name not in (SELF, OLDER)


def script_of(name: str) -> Script:
    """Makes a scripted opponent for one episode.

    A class is constructed with the options; a function gets them after the view.

    Raises:
      ValueError: it cannot be imported, or does not take its options.
    """
    term = parse_opponent(name)
    if term.name in SCRIPTS:
        return SCRIPTS[term.name]
    made: Any = resolve(term.name)
    is_class = isinstance(made, type)
    try:
        inspect.signature(made).bind(*(() if is_class else (None,)), **term.options)
    except TypeError as error:
        takes = "its options" if is_class else "a View, and then its options"
        raise ValueError(f"The opponent {name} takes {takes}: {error}.") from error
    if not is_class:
        return lambda view: made(view, **term.options)
    player = made(**term.options)
    if not callable(player):
        raise ValueError(f"The opponent {name} is a class without __call__(self, view).")
    return player


def _moves(view: View) -> tuple[str, ...]:
    if not view.moves:
        raise ValueError(
            "The game does not tell its legal moves (Turn.moves), of which this opponent chooses"
            " one: let it tell them, or use a function of your own as opponent."
        )
    return view.moves
