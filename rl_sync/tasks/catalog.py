"""The tasks by name: from `config.task` to loaded problems."""

from __future__ import annotations

import dataclasses
import difflib

from rl_sync.tasks import arithmetic, jsonl
from rl_sync.tasks.arithmetic import ArithmeticConfig
from rl_sync.tasks.jsonl import JsonlConfig
from rl_sync.tasks.task import Task

TASKS = ("arithmetic", "jsonl")


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """`config.task`: which task, and the settings of each.

    Attributes:
      name: one of `TASKS`.

    Raises:
      ValueError: an unknown name.
    """

    name: str
    arithmetic: ArithmeticConfig
    jsonl: JsonlConfig

    def __post_init__(self) -> None:
        if self.name not in TASKS:
            near = difflib.get_close_matches(self.name, TASKS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(f"task.name={self.name!r} is not one of {', '.join(TASKS)}{hint}")


def load_task(config: TaskConfig, seed: int) -> Task:
    """Loads the problems of the named task.

    Raises:
      ValueError, OSError: they cannot be had; the message says where it fails.
    """
    if config.name == "arithmetic":
        return arithmetic.load(config.arithmetic, seed)
    return jsonl.load(config.jsonl, seed)
