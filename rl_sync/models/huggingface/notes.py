"""Writes and reads notes that explain the scores of an exported reward model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from rl_sync.models.huggingface.files import read_object

NOTES_FILE = "reward_model.json"


@dataclasses.dataclass(frozen=True)
class ScoreNotes:
    """Notes on a reward model.

    Attributes:
      chat, system: tokenizer settings that it was trained with.
      mean, std: mean and standard deviation of its scores of held-out pairs; None if not measured.
      accuracy: fraction of held-out pairs that it ranks correctly.
      pairs: number of held-out pairs.
    """

    chat: str = "auto"
    system: str | None = None
    mean: float | None = None
    std: float | None = None
    accuracy: float | None = None
    pairs: float | None = None

    def to_json(self) -> str:
        """Returns the file's contents."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def read_notes(directory: Path) -> ScoreNotes | None:
    """Reads the notes of a directory; None if there are none.

    Raises:
      ValueError: they cannot be read; the message names the file.
    """
    try:
        found = read_object(directory / NOTES_FILE)
    except FileNotFoundError:
        return None
    names = {field.name for field in dataclasses.fields(ScoreNotes)}
    return ScoreNotes(**{name: value for name, value in found.items() if name in names})
