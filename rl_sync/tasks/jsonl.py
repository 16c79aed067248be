"""A task from the user's own file, with a JSON object {"prompt": …, "answer": …} a line.

It is a `dataset` task in its plain format; the only settings are those of where its rows are.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rl_sync.setting import check, setting
from rl_sync.tasks import dataset
from rl_sync.tasks.dataset import DatasetConfig
from rl_sync.tasks.problems import Problems

_WAY_OUT = 'Give --config.task.jsonl.path=FILE, with one {"prompt": …, "answer": …} a line.'


@dataclasses.dataclass(frozen=True)
class JsonlConfig:
    """`config.task.jsonl`."""

    path: str | None = setting(
        None,
        'File of the training problems: an object `{"prompt": …, "answer": …}` a line; where an'
        " environment judges, without the answer.",
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
        "Share of the different prompts that is held out where there is no file of them, in a"
        " seeded choice.",
        least=0,
        greatest=1,
    )

    def __post_init__(self) -> None:
        check(self, "task.jsonl")


def load(config: JsonlConfig, seed: int) -> Problems:
    """Loads the problems of a file.

    Raises:
      ValueError: there is no path; a row is malformed or has no prompt or answer (the message names
        file and line); or the fraction leaves no problems on one side.
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
            held_out_path=config.held_out_path,
            held_out_fraction=config.held_out_fraction,
        ),
        seed,
        section="task.jsonl",
    )
