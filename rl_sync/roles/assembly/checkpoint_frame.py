"""The files of a run's checkpoint besides its weights: config.json and the tokenizer's."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.reading import locate
from rl_sync.models.huggingface.writing import FrameSources, write_frame
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task import Task
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from rl_sync.tasks.tokenizers.tokenizer_files import token_ids, tokenizer_files


def frame_of(settings: RunSettings, task: Task, model: ModelConfig) -> dict[str, bytes]:
    """Returns the files of a checkpoint besides its weights, by name: config and tokenizer.

    There are none for a model that transformers does not know, or if adapters or quantized kernels
    are published.
    """
    if model.lora or settings.quantization:
        return {}
    path = settings.model.path
    with tempfile.TemporaryDirectory() as folder:
        frame = Path(folder) / "frame"
        try:
            write_frame(
                frame,
                model,
                FrameSources(
                    source=None if path is None else locate(path),
                    dtype=settings.explorer_dtype,
                    **tokenizer_of(settings, task),
                ),
            )
        except ValueError:
            return {}
        return {file.name: file.read_bytes() for file in sorted(frame.iterdir())}


def tokenizer_of(settings: RunSettings, task: Task) -> dict[str, Any]:
    """Returns the run's tokenizer, unless `model.path` provides its own, and what ends a reply."""
    tokenizer, path = task.tokenizer, settings.tokenizer.path
    if isinstance(tokenizer, CharacterTokenizer):
        return {"files": tokenizer_files(tokenizer), "token_ids": token_ids(tokenizer)}
    ends = list(tokenizer.eos_ids)
    ids = {"eos_token_id": ends if len(ends) > 1 else ends[0]}
    if path is None:
        return {"token_ids": ids}
    return {"tokenizer": locate(path), "token_ids": ids | {"pad_token_id": tokenizer.pad_id}}
