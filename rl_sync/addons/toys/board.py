"""Asks about a board with holes in the ice, which is drawn here: safe squares, ways to the goal.

The policy gets the question, and `row["images"]` has the board, like that of Gymnasium's
FrozenLake: ice is pale blue, holes are dark, the goal is green, and the player is a red disc.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from rl_sync.addons.toys.drawn_problems import (
    DrawnProblem,
    DrawnTaskConfig,
    QuestionKind,
    draw_problems,
    named_kinds,
)
from rl_sync.setting import check, setting
from rl_sync.tasks.problems import Problems, TaskKind

KINDS = ("safe", "move")
MOVES = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
"""Step of each move: columns to the right, rows downwards."""

_BESIDE = {
    "left": "to the left of",
    "right": "to the right of",
    "up": "above",
    "down": "below",
}
_ICE, _HOLE, _GOAL, _PLAYER = (205, 230, 245), (25, 45, 90), (40, 160, 60), (220, 40, 40)
_LINE = (150, 180, 205)
_LEAST_SQUARE_PIXELS = 6

Square = tuple[int, int]
"""Column and row, from the upper left."""


@dataclasses.dataclass(frozen=True)
class BoardConfig(DrawnTaskConfig):
    """`config.task.board`.

    Raises:
      ValueError: a kind of question is unknown, or a value is outside its range.
    """

    section = "task.board"

    questions: str = setting(
        ",".join(KINDS),
        "Kinds of questions, separated by commas: `safe` asks whether a square beside the player is"
        " safe, `move` for the first move of the shortest way to the goal.",
    )
    squares: int = setting(4, "Squares along each side of the board.", least=3, greatest=12)
    holes: float = setting(0.3, "Probability that a square is a hole.", above=0, greatest=0.6)
    side_pixels: int = setting(
        56, "Side of the square image.", unit="pixels", least=18, greatest=1024
    )

    def __post_init__(self) -> None:
        check(self, self.section)
        named_kinds(self.section, self.questions, KINDS)
        needed = self.squares * _LEAST_SQUARE_PIXELS
        if self.side_pixels < needed:
            raise ValueError(
                f"task.board.side_pixels={self.side_pixels} is too small for {self.squares} times"
                f" {self.squares} squares: use {needed} or more, or fewer squares."
            )

    @property
    def names(self) -> list[str]:
        """Kinds of questions in use."""
        return named_kinds(self.section, self.questions, KINDS)


class Board(NamedTuple):
    """A board with a player on it.

    Attributes:
      squares: number of squares along each side.
      holes: squares that are not safe.
    """

    squares: int
    holes: frozenset[Square]
    player: Square
    goal: Square

    @classmethod
    def drawn(cls, squares: int, holes: float, random: np.random.Generator) -> Board:
        """Draws a board at random; player and goal stand on different safe squares."""
        every = [(column, row) for row in range(squares) for column in range(squares)]
        player, goal, *others = (every[i] for i in random.permutation(len(every)))
        is_hole = random.random(len(others)) < holes
        return cls(
            squares,
            frozenset(one for one, hole in zip(others, is_hole, strict=True) if hole),
            player,
            goal,
        )

    @classmethod
    def with_a_way(cls, squares: int, holes: float, random: np.random.Generator) -> Board:
        """Draws boards at random until the goal can be reached."""
        while True:
            board = cls.drawn(squares, holes, random)
            if board.shortest_first_moves():
                return board

    @classmethod
    def read(cls, text: str) -> Board:
        """Reads a board from its text; see `text`.

        Raises:
          ValueError: it is not a square of `.`, `H`, one `G` and one `P`.
        """
        rows = text.strip().split("/")
        found = {
            character: [
                (x, y) for y, row in enumerate(rows) for x, c in enumerate(row) if c == character
            ]
            for character in ".HGP"
        }
        size = len(rows)
        if sum(map(len, found.values())) != size**2 or {*map(len, rows)} != {size}:
            raise ValueError(
                f"{text!r} is not a board: it must be as many rows as columns, divided by /, of"
                " . (ice), H (hole), G (goal) and P (player)."
            )
        if len(found["G"]) != 1 or len(found["P"]) != 1:
            raise ValueError(f"{text!r} must have one goal (G) and one player (P).")
        return cls(size, frozenset(found["H"]), found["P"][0], found["G"][0])

    @property
    def text(self) -> str:
        """The board in characters: rows of `.` (ice), `H`, `G` and `P`, divided by `/`."""
        names = dict.fromkeys(self.holes, "H") | {self.goal: "G", self.player: "P"}
        columns = range(self.squares)
        return "/".join("".join(names.get((x, y), ".") for x in columns) for y in columns)

    def beside(self, square: Square, move: str) -> Square | None:
        """Returns the square that a move leads to; None if it leads off the board."""
        (column, row), (right, down) = square, MOVES[move]
        found = column + right, row + down
        return found if min(found) >= 0 and max(found) < self.squares else None

    def shortest_first_moves(self) -> list[str]:
        """Returns the first moves of the shortest ways to the goal around the holes."""
        steps = {self.goal: 0}
        near = collections.deque([self.goal])
        while near:
            square = near.popleft()
            for move in MOVES:
                found = self.beside(square, move)
                if found is not None and found not in self.holes and found not in steps:
                    steps[found] = steps[square] + 1
                    near.append(found)
        if self.player not in steps:
            return []
        nearer = steps[self.player] - 1
        ways = {move: self.beside(self.player, move) for move in MOVES}
        return [move for move, at in ways.items() if at is not None and steps.get(at) == nearer]

    def pixels(self, side_pixels: int) -> UInt8[np.ndarray, "side side 3"]:
        """Draws the board as a square image."""
        import PIL.Image
        import PIL.ImageDraw

        image = PIL.Image.new("RGB", (side_pixels, side_pixels), _LINE)
        draw = PIL.ImageDraw.Draw(image)
        square = side_pixels // self.squares
        start = (side_pixels - square * self.squares) // 2
        for row in range(self.squares):
            for column in range(self.squares):
                x, y = start + column * square, start + row * square
                place = column, row
                ground = _HOLE if place in self.holes else _GOAL if place == self.goal else _ICE
                draw.rectangle((x, y, x + square - 2, y + square - 2), fill=ground)
                if place == self.player:
                    draw.ellipse((x + 1, y + 1, x + square - 3, y + square - 3), fill=_PLAYER)
        return np.asarray(image)


def load(config: BoardConfig, seed: int) -> Problems:
    """Draws different boards, and holds some of them out by the seed.

    Raises:
      ValueError: there are not enough different boards.
    """
    random = np.random.default_rng([seed, config.problems])
    safe_squares = [(move, answer) for answer in ("yes", "no") for move in MOVES]

    def safe(aim: tuple[str, str], random: np.random.Generator) -> DrawnProblem | None:
        move, answer = aim
        board = Board.drawn(config.squares, config.holes, random)
        square = board.beside(board.player, move)
        if square is None or (square in board.holes) != (answer == "no"):
            return None
        question = f"Is the square {_BESIDE[move]} the player safe?"
        fields = {"kind": "choice", "choices": ["yes", "no"]}
        return DrawnProblem(board.pixels(config.side_pixels), question, answer, fields)

    def first_move(aim: str, random: np.random.Generator) -> DrawnProblem | None:
        board = Board.drawn(config.squares, config.holes, random)
        if board.shortest_first_moves() != [aim]:
            return None
        question = "Which move is the first of the shortest way to the goal?"
        fields = {"kind": "choice", "choices": list(MOVES)}
        return DrawnProblem(board.pixels(config.side_pixels), question, aim, fields)

    kinds = {
        "safe": QuestionKind(safe_squares, safe),
        "move": QuestionKind(tuple(MOVES), first_move),
    }
    drawn = draw_problems({name: kinds[name] for name in config.names}, config.wanted, random)
    way_out = "use more squares, or a probability of holes nearer to 0.3"
    return config.divide(drawn, random, ("squares", "holes"), way_out)


TASK = TaskKind(BoardConfig, load, "Questions about a board with holes, a player and a goal.")
