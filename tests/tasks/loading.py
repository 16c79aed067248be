"""Tasks from the default config with a few settings changed, and files for them to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl_sync.configs import base
from rl_sync.settings.records import build
from rl_sync.tasks.task import Task
from rl_sync.tasks.task_catalog import TaskConfig, load_task
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig

TOKENIZER = Path(__file__).resolve().parents[1] / "data" / "tokenizer"


def load(
    seed: int = 0,
    chat: str = "auto",
    system: str | None = None,
    tokenizer: str | Path | None = None,
    thoughts: str | None = None,
    **fields: Any,
) -> Task:
    """Loads a task; `dataset__path` stands for task.dataset.path."""
    config = base.get_config().task
    for name, value in fields.items():
        section, _, field = name.rpartition("__")
        (config[section] if section else config)[field] = value
    path = None if tokenizer is None else str(tokenizer)
    task = build(TaskConfig, config.to_dict(), "config.task")
    return load_task(task, TokenizerConfig(path, chat, system, thoughts=thoughts), seed)


def dataset(path: str | Path, seed: int = 0, **fields: Any) -> Task:
    """Loads a data set with some of `task.dataset` set."""
    named = {f"dataset__{name}": value for name, value in fields.items()}
    return load(seed, name="dataset", dataset__path=str(path), **named)


def write_lines(path: Path, rows: list[Any]) -> Path:
    """Writes a row a line; texts are written as they are."""
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(texts), "utf-8")
    return path
