"""A task from the user's own file: a JSON object {"prompt": …, "answer": …} a line.

The shortest way to a `dataset` task: its plain format, with no settings but where the rows are.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rl_sync.tasks import dataset
from rl_sync.tasks.dataset import DatasetConfig
from rl_sync.tasks.problems import Problems

_WAY_OUT = 'Give --config.task.jsonl.path=FILE, with one {"prompt": …, "answer": …} a line.'


@dataclasses.dataclass(frozen=True)
class JsonlConfig:
    """`config.task.jsonl`.

    Attributes:
      path: the training problems.
      held_out_path: the held-out problems; None to hold out some of the training ones.
      held_out_fraction: how many of the different prompts, between 0 and 1; a seeded choice.
      reward: the reward model's name.
    """

    path: str | None
    held_out_path: str | None
    held_out_fraction: float
    reward: str


def load(config: JsonlConfig, seed: int) -> Problems:
    """Loads the problems of a file.

    Raises:
      ValueError: no path, a row that is malformed or has no prompt or answer (names file and
        line), or a fraction that leaves no problems on one side.
      OSError: a file cannot be read.
    """
    if not config.path:
        raise ValueError(f"task.jsonl.path is not set. {_WAY_OUT}")
    for path in (config.path, config.held_out_path):
        if path is not None and not (file := Path(path)).is_file():
            fault = "is a directory" if file.is_dir() else "no such file"
            raise ValueError(f"{path}: {fault}. {_WAY_OUT}")
    return dataset.load(
        DatasetConfig(
            path=config.path,
            subset=None,
            split="train",
            held_out_path=config.held_out_path,
            held_out_split=None,
            held_out_fraction=config.held_out_fraction,
            limit=0,
            format="plain",
            prompt=None,
            template=None,
            answer=None,
            answer_pattern=None,
            choices=None,
            demonstration=None,
            reward=config.reward,
        ),
        seed,
        section="task.jsonl",
    )
