"""Rows and moves of games, for runs whose policy knows only how moves are written.

A row's answer is a move, which SFT shows: nobody compares with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.environments.families import FAMILIES, model

ROWS = 64
GUESS, ACCEPT = "GuessTheNumber-v0", "Secretary-v0"
SHOWN = {GUESS: "between 1 and 20", ACCEPT: "hidden values sequentially"}
"""By the game of TextArena: words of its rules."""
_MOVES = {GUESS: [f"[{i}]" for i in range(1, 21)], ACCEPT: ["[accept]", "[continue]"]}
_DIRECTIONS = ["left", "down", "right", "up"]
_WORDS = ["a", "bb", "ccc"]


def arena():
    """Names a game of TextArena in each row."""
    games = [(GUESS, ACCEPT)[i % 2] for i in range(ROWS)]
    return [
        {"prompt": f"Game {i}.", "answer": _one_of(_MOVES[game], i // 2), "game": game, "level": i}
        for i, game in enumerate(games)
    ]


def lake():
    """Says something else in each row of what Gymnasium shows."""
    return [
        {"prompt": f"Lake {i}: reach G.", "answer": f"[{_one_of(_DIRECTIONS, i)}]", "lake": i}
        for i in range(ROWS)
    ]


def words():
    """Begins with words of another length in each row."""
    return [
        {"prompt": f"Game {i}.", "answer": _one_of(_WORDS, i), "length": 1 + i % 3}
        for i in range(ROWS)
    ]


def save_tokenizer(directory: Path, more: Sequence[str] = ()) -> Path:
    """Saves a ChatML tokenizer to which each move is one token; letters are that anyway.

    Args:
      more: further texts that are one token.
    """

    from transformers import PreTrainedTokenizerFast

    template, special, _, plain = FAMILIES["chatml"]
    moves = {row["answer"] for rows in (arena(), lake(), words()) for row in rows} | {*more}
    tokens = model(special, (*plain, *sorted(move for move in moves if len(move) > 1)))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token=special[0])
    fast.chat_template = template
    fast.save_pretrained(directory)
    return directory


def _one_of(moves: Sequence[str], i: int) -> str:
    return moves[i % len(moves)]
