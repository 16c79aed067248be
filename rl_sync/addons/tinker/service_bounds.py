"""Limits of what clients may ask a server for."""

from __future__ import annotations

import dataclasses

from rl_sync.isolation.codec import record
from rl_sync.models.config import ModelConfig


@record
@dataclasses.dataclass(frozen=True)
class ServiceBounds:
    """Limits of what clients may ask for.

    Attributes:
      models: maximum number of models at once, each with adapters and an optimizer.
      rows: maximum number of data of a pass.
      length: maximum number of tokens of a datum, and of a prompt with its completion.
      slots: maximum number of completions that are decoded at once.
      batch_tokens: maximum number of tokens of a batch that is computed at once.
      snapshots: maximum number of sampling sessions whose weights are in memory.
      silent_secs: time without a sign of its client after which a session is ended, if others need
        the room of its models, or it has none.

    Raises:
      ValueError: a bound is below 1.
    """

    models: int = 4
    rows: int = 1024
    length: int = 2048
    slots: int = 16
    batch_tokens: int = 4096
    snapshots: int = 16
    silent_secs: float = 600.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if (value := getattr(self, field.name)) < 1:
                raise ValueError(f"{field.name}={value} must be at least 1.")

    def length_in(self, model: ModelConfig) -> int:
        """Returns the maximum number of tokens of a row, which the model may bound, too."""
        return min(self.length, model.max_length)
