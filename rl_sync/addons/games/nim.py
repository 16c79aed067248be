"""A game of two players: Nim, in few characters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_sync.environments.interface import Message, Outcome, Reply, Standing, Turn

ASKS, ENDS = ":", ";"
_MOST_PILES, _MOST_STONES = 5, 9
_NAMES = "abcde"


class Nim:
    """Nim: the player who takes the last stone wins. The row's `prompt` has the piles, as `345`.

    A player is shown the piles, `345:`, and names a pile and the number of stones that it takes
    from it: `b2;` leaves `325:` to the other player. Player 0 begins. A player who writes anything
    but a move loses. The reward `game` is 1 for the winner and −1 for the loser.
    """

    inline = True
    charset = f"0123456789{_NAMES}{ASKS}{ENDS}"

    def __init__(self) -> None:
        self.players = 2
        self._piles: list[int] = []
        self._player = self._moves = 0

    def reset(self, task: Mapping[str, Any], seed: int) -> Turn:
        """Begins a game.

        Raises:
          ValueError: the row has no piles.
        """
        del seed
        shown = str(task["prompt"]).strip().removesuffix(ASKS)
        is_game = shown.isdecimal() and shown.isascii() and len(shown) <= _MOST_PILES
        if not is_game or not any(map(int, shown)):
            raise ValueError(
                f"A game of Nim has 1 to {_MOST_PILES} piles of up to {_MOST_STONES} stones, as"
                f" 345, not {shown!r}."
            )
        self._piles, self._player, self._moves = [*map(int, shown)], 0, 0
        return self._turn()

    def step(self, reply: Reply) -> Turn | Outcome:
        """Takes stones."""
        self._moves += 1
        move = reply.answer.strip()
        if move not in legal_moves(self._piles):
            return self._over(1 - self._player, f"{move[:20]!r} is no move", illegal=True)
        self._piles[_NAMES.index(move[0])] -= int(move[1])
        if not any(self._piles):
            return self._over(self._player, "took the last stone", illegal=False)
        self._player = 1 - self._player
        return self._turn()

    def close(self) -> None:
        """Does nothing."""

    def _turn(self) -> Turn:
        shown = "".join(map(str, self._piles))
        return Turn(
            (Message("user", f"{shown}{ASKS}"),),
            stop_strings=(ENDS,),
            player=self._player,
            moves=legal_moves(self._piles),
        )

    def _over(self, winner: int, why: str, illegal: bool) -> Outcome:
        standings = tuple(
            Standing(
                {"game": 1.0 if player == winner else -1.0},
                {"illegal": float(illegal and player == self._player)},
            )
            for player in range(self.players)
        )
        why = f"player {self._player}: {why}"
        return Outcome({}, {"moves": float(self._moves)}, why=why, standings=standings)


def legal_moves(piles: list[int]) -> tuple[str, ...]:
    """Returns all moves from some piles, such as `b2;`."""
    return tuple(
        f"{_NAMES[pile]}{count}{ENDS}"
        for pile, stones in enumerate(piles)
        for count in range(1, stones + 1)
    )
