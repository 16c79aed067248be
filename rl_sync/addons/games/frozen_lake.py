"""A game that is seen: cross a frozen lake with holes, with a picture of it after each move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_sync.addons.toys.board import MOVES, Board
from rl_sync.environments.interface import Message, Outcome, Reply, Turn
from rl_sync.images import Image

FIELD = "lake"
"""Field of a data row that holds a lake, as `Board.text` writes it."""

_NAMES = {name[0]: name for name in MOVES}


class FrozenLake:
    """Shows a lake from above: the player is a red disc, the goal is green, holes are dark.

    The lake is the row's `lake`; without one it is drawn at random, with a way to the goal. After
    each picture comes the row's `prompt`. A reply is a move, `left`, `right`, `up` or `down`, or
    its first letter; the player stays where a move leads off the lake. The reward `reached` is 1 at
    the goal, and 0 in a hole, after the last move, and for any other reply. The metric `moves`
    counts moves.

    Args:
      squares: squares along each side of a lake drawn at random.
      holes: probability that a square of it is a hole.
      side_pixels: side of the pictures, in pixels.
      moves: maximum number of moves.

    Raises:
      ValueError: an option is outside its range.
    """

    inline = True
    shows_images = True
    charset = "".join(_NAMES)

    def __init__(
        self, squares: int = 4, holes: float = 0.2, side_pixels: int = 64, moves: int = 16
    ) -> None:
        if not (squares >= 2 and 0 <= holes <= 0.6 and side_pixels >= 6 * squares and moves >= 1):
            raise ValueError(
                f"frozen_lake(squares={squares}, holes={holes}, side_pixels={side_pixels},"
                f" moves={moves}) needs at least 2 squares, holes from 0 to 0.6, 6 pixels a square,"
                " and a move."
            )
        self._squares, self._holes, self._pixels = squares, holes, side_pixels
        self._most, self._made, self._asks = moves, 0, ""
        self._board: Board | None = None

    def reset(self, task: Mapping[str, Any], seed: int) -> Turn:
        """Begins a game."""
        written = task.get(FIELD)
        if written is None:
            random = np.random.default_rng(seed)
            self._board = Board.with_a_way(self._squares, self._holes, random)
        else:
            self._board = Board.read(str(written))
        self._made, self._asks = 0, str(task["prompt"])
        return self._turn()

    def step(self, reply: Reply) -> Turn | Outcome:
        """Makes a move."""
        board = self._board
        assert board is not None, "a game begins with reset"
        text = reply.answer.strip().lower()
        move = _NAMES.get(text, text)
        if move not in MOVES:
            return self._over(0.0, reason="parse error")
        self._made += 1
        player = board.beside(board.player, move) or board.player
        if player in board.holes or player == board.goal:
            return self._over(float(player == board.goal))
        if self._made == self._most:
            return self._over(0.0)
        self._board = board._replace(player=player)
        return self._turn()

    def close(self) -> None:
        """Does nothing."""

    def _turn(self) -> Turn:
        assert self._board is not None, "a game begins with reset"
        picture = Image.of_array(self._board.pixels(self._pixels))
        return Turn((Message("user", self._asks, images=(picture,)),))

    def _over(self, reached: float, **more: Any) -> Outcome:
        return Outcome({"reached": reached}, {"moves": self._made}, **more)
