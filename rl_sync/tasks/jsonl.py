"""A task from the user's own file: a JSON object {"prompt": …, "answer": …} a line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from rl_sync.tasks.task import Task
from rl_sync.tasks.tokenizer import CharacterTokenizer
from rl_sync.types import Prompt

_WAY_OUT = 'Give --config.task.jsonl.path=FILE, with one {"prompt": …, "answer": …} a line.'


@dataclasses.dataclass(frozen=True)
class JsonlConfig:
    """`config.task.jsonl`.

    Attributes:
      path: the training problems.
      held_out_path: the held-out problems; None to hold out some of the training ones.
      held_out_fraction: how many, between 0 and 1; a seeded choice.
      reward: the reward model's name.
    """

    path: str | None
    held_out_path: str | None
    held_out_fraction: float
    reward: str


def load(config: JsonlConfig, seed: int) -> Task:
    """Loads the problems of a file.

    Raises:
      ValueError: no path, a row that is malformed or has no prompt or answer (names file and
        line), or a fraction that leaves no problems on one side.
      OSError: a file cannot be read.
    """
    if not config.path:
        raise ValueError(f"task.jsonl.path is not set. {_WAY_OUT}")
    train = read_rows(config.path)
    if config.held_out_path is not None:
        held_out = read_rows(config.held_out_path)
    else:
        train, held_out = _split(config.path, train, config.held_out_fraction, seed)
    rows = [*train, *held_out]
    return Task(
        train=_numbered(train),
        demonstrations=_numbered(train),
        held_out=_numbered(held_out),
        tokenizer=CharacterTokenizer.of_texts(text for row in rows for text in row),
        reward=config.reward,
        max_prompt_tokens=max(len(prompt) for prompt, _ in rows),
        max_completion_tokens=max(len(answer) for _, answer in rows) + 1,
    )


def read_rows(path: str) -> list[tuple[str, str]]:
    """Reads (prompt, answer) of every line; blank lines are passed over.

    Raises:
      ValueError, OSError: see `load`.
    """
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such file. {_WAY_OUT}")
    rows = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            rows.append(_row(line, f"{path}, line {number}"))
    if not rows:
        raise ValueError(f"{path} has no rows.")
    return rows


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}.") from error


def _row(line: str, where: str) -> tuple[str, str]:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}.") from error
    if not isinstance(row, dict):
        raise ValueError(
            f'{where} is not an object {{"prompt": …, "answer": …}}: {line.strip()!r}.'
        )
    for field in ("prompt", "answer"):
        value = row.get(field)
        if isinstance(value, int | float) and not isinstance(value, bool):
            row[field] = value = str(value)
        if not isinstance(value, str) or not value.strip():
            found = "is missing" if field not in row else f"is {value!r}"
            raise ValueError(f"{where}: {field!r} {found}; it must be text that is not empty.")
    return row["prompt"], row["answer"]


def _split(
    path: str, rows: list[tuple[str, str]], fraction: float, seed: int
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    held_out = round(len(rows) * fraction)
    if not 0 < held_out < len(rows):
        raise ValueError(
            f"task.jsonl.held_out_fraction={fraction} of the {len(rows)} rows in {path} holds out"
            f" {held_out}: at least one must be held out and one left to train on."
        )
    order = np.random.default_rng(seed).permutation(len(rows))
    chosen = set(order[:held_out].tolist())
    train = [row for i, row in enumerate(rows) if i not in chosen]
    return train, [rows[i] for i in sorted(chosen)]


def _numbered(rows: list[tuple[str, str]]) -> list[Prompt]:
    return [Prompt(i, prompt, answer) for i, (prompt, answer) in enumerate(rows)]
