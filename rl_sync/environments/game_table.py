"""Table: a game with its players. It gives the policy a seat, and plays scripted opponents' moves.

A game of one player is unchanged.
"""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from rl_sync.ending import RESULTS
from rl_sync.environments import validation
from rl_sync.environments.interface import (
    Environment,
    Message,
    Outcome,
    Reply,
    SeatedOutcome,
    SeatedTurn,
    Turn,
    players_of,
)
from rl_sync.environments.opponents import Script, Seating, View, is_scripted, script_of

_REPLY_CHARACTERS = 100_000
LATE_REWARD = "late_turns"
"""Name of rewards of replies that were not followed by a turn of the same player."""


class GameTable:
    """Plays a game with its players as one episode of the player who learns.

    Args:
      environment: the game.
      seating: the players.
    """

    def __init__(self, environment: Environment, seating: Seating) -> None:
        self._environment, self._seating = environment, seating
        self._seat, self._players = 0, 1
        self._scripts: dict[int, tuple[Script, random.Random]] = {}
        self._messages: dict[int, tuple[Message, ...]] = {}
        self._moves: list[tuple[int, str, str]] = []
        self._speaker: int | None = None
        self._owed = 0.0

    def reset(
        self, task: Mapping[str, Any], seed: int
    ) -> Turn | Outcome | Awaitable[Turn | Outcome]:
        """Begins the game, and plays until it is the turn of a policy, or the game is over.

        Raises:
          ValueError: the game lacks the policy's seat, or returned something invalid.
        """
        found = self._environment.reset(task, seed)
        if inspect.isawaitable(found):
            return self._awaited_first(found, seed)
        return found if self._is_alone else self._first(found, seed)

    def step(self, reply: Reply) -> Turn | Outcome | Awaitable[Turn | Outcome]:
        """Makes the move of the policy whose turn it is, and plays on until a policy is asked."""
        if self._players == 1:
            return self._environment.step(reply)
        return self._moved(reply)

    def close(self) -> Awaitable[None] | None:
        """Closes the game."""
        return self._environment.close()

    @property
    def _is_alone(self) -> bool:
        return players_of(self._environment) == 1

    async def _awaited_first(self, found: Awaitable[Turn], seed: int) -> Turn | Outcome:
        turn = await found
        return turn if self._is_alone else await self._first(turn, seed)

    async def _first(self, found: Turn, seed: int) -> Turn | Outcome:
        turn = validation.check_turn(self._environment, found)
        self._players = players_of(self._environment)
        seat, opponent = self._seating.seat, self._seating.opponent
        if seat is not None and seat >= self._players:
            raise ValueError(
                f"environment.seat={seat}, but the game has {self._players} players, with numbers"
                f" from 0 to {self._players - 1}: leave it out, and the policy plays all of them by"
                " turns."
            )
        self._seat = self._seating.number % self._players if seat is None else seat
        if is_scripted(opponent):
            self._scripts = {
                player: (script_of(opponent), random.Random(f"{seed} {player}"))
                for player in range(self._players)
                if player != self._seat
            }
        return await self._played_on(turn)

    async def _moved(self, reply: Reply) -> Turn | Outcome:
        return await self._played_on(await validation.step(self._environment, reply))

    async def _played_on(self, answer: Turn | Outcome) -> Turn | Outcome:
        """Plays scripted moves until a policy is asked, or the game is over."""
        while isinstance(answer, Turn):
            if self._speaker == self._seat:
                self._owed += answer.reward
            self._speaker = player = answer.player
            if player not in self._scripts:
                return self._seated(answer)
            reply = await self._scripted(player, answer)
            self._moves.append((player, self._seating.opponent, reply.text))
            answer = await validation.step(self._environment, reply)
        return self._over(answer)

    async def _scripted(self, player: int, turn: Turn) -> Reply:
        """Lets a scripted player reply.

        Raises:
          ValueError: it returned no text, or a very long one. Its own exceptions are not caught.
        """
        script, draws = self._scripts[player]
        messages = (*self._messages.get(player, ()), *turn.messages)
        found: Any = script(View(messages, turn.moves, player, self._players, draws))
        text = await found if inspect.isawaitable(found) else found
        if not isinstance(text, str) or len(text) > _REPLY_CHARACTERS:
            shown = f"a {type(text).__name__}" if not isinstance(text, str) else f"{len(text)}"
            raise ValueError(
                f"The opponent {self._seating.opponent} must return its reply, a text of at most"
                f" {_REPLY_CHARACTERS} characters, not {shown}."
            )
        self._messages[player] = (*messages, Message("assistant", text))
        return Reply(text)

    def _seated(self, turn: Turn) -> SeatedTurn:
        learns = turn.player == self._seat
        reward = 0.0
        if learns:
            reward, self._owed = self._owed, 0.0
        return SeatedTurn(
            **{**_fields(turn, Turn), "reward": reward, "moves": ()},
            learns=learns,
            seat=self._seat,
            played=self._played(),
        )

    def _over(self, outcome: Outcome) -> SeatedOutcome:
        """Returns the end of the game as the player who learns sees it."""
        fields = _fields(outcome, Outcome)
        fields |= {"seat": self._seat, "played": self._played()}
        if not outcome.standings:
            if outcome.rewards:
                raise ValueError(
                    f"A game of {self._players} players ended with rewards={outcome.rewards!r}, but"
                    " whose are they? Give each player's: Outcome({}, standings=(Standing(...),"
                    " ...))."
                )
            return SeatedOutcome(**fields)
        mine = outcome.standings[self._seat]
        others = [one for player, one in enumerate(outcome.standings) if player != self._seat]
        rewards = {**mine.rewards, **({LATE_REWARD: self._owed} if self._owed else {})}
        metrics = {
            **outcome.metrics,
            **_result(sum(mine.rewards.values()), [sum(one.rewards.values()) for one in others]),
            **mine.metrics,
        }
        for name in {name for one in others for name in one.metrics}:
            values = [one.metrics[name] for one in others if name in one.metrics]
            metrics[f"opponent/{name}"] = sum(values) / len(values)
        metrics[f"won_as_player_{self._seat}"] = metrics["won"]
        fields |= {"rewards": rewards, "metrics": metrics, "standings": ()}
        return SeatedOutcome(**fields)

    def _played(self) -> tuple[tuple[int, str, str], ...]:
        """Returns the scripted moves since the last answer."""
        played, self._moves = tuple(self._moves), []
        return played


def _fields(record: Turn | Outcome, cls: type) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(cls)}


def _result(mine: float, others: Sequence[float]) -> dict[str, float]:
    """Returns 1 for a player's result, and 0 for the other `RESULTS`.

    It has lost if another player has more, drawn if all have the same, and won otherwise.
    """
    lost = mine < max(others)
    drawn = not lost and mine == min(others)
    values = (not lost and not drawn, drawn, lost)
    return {name: float(value) for name, value in zip(RESULTS, values, strict=True)}
