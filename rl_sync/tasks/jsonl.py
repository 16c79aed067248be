"""Loads a task from the user's file, with one JSON object {"prompt": …, "answer": …} a line.

It is a `dataset` task in its plain format; its only settings are the sources of its rows.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rl_sync.setting import check, setting
from rl_sync.tasks import dataset
from rl_sync.tasks.dataset import DatasetConfig
from rl_sync.tasks.problems import Problems

_FORM = '=FILE, with one {"prompt": …, "answer": …} a line.'


@dataclasses.dataclass(frozen=True)
class JsonlConfig:
    """`config.task.jsonl`."""

    path: str | None = setting(
        None,
        'File of the training problems, with one object `{"prompt": …, "answer": …}` a line;'
        " the answer may be missing if an environment gives the reward.",
        implied="none, and task.name=jsonl needs one",
        is_path=True,
    )
    held_out_path: str | None = setting(
        None,
        "File of the held-out problems.",
        implied="some of the training problems are held out",
        is_path=True,
    )
    held_out_fraction: float = setting(
        0.1,
        "Fraction of the different prompts that is held out if there is no file for them, chosen"
        " by the seed.",
        least=0,
        greatest=1,
    )

    def __post_init__(self) -> None:
        check(self, "task.jsonl")


def load(config: JsonlConfig, seed: int) -> Problems:
    """Loads the problems of a file.

    Raises:
      ValueError: there is no path; a row is malformed or lacks its prompt or answer (the message
        names file and line); or the fraction leaves no problems on one side.
      OSError: a file cannot be read.
    """
    if not config.path:
        raise ValueError(f"task.jsonl.path is not set. Give --config.task.jsonl.path{_FORM}")
    for name, path in (("path", config.path), ("held_out_path", config.held_out_path)):
        if path is not None and not (file := Path(path)).is_file():
            fault = "is a directory" if file.is_dir() else "no such file"
            raise ValueError(f"{path}: {fault}. Give --config.task.jsonl.{name}{_FORM}")
    return dataset.load(
        DatasetConfig(
            path=config.path,
            held_out_path=config.held_out_path,
            held_out_fraction=config.held_out_fraction,
        ),
        seed,
        section="task.jsonl",
    )
