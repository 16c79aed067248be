"""What a loader of problems returns, before a tokenizer says how long they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rl_sync.types import Prompt


@dataclasses.dataclass(frozen=True)
class Problems:
    """The problems of a task, as text.

    Attributes:
      train: problems to learn from; `train[i].prompt_id == i`.
      held_out: other problems, to measure on.
      demonstrations: training problems with what is to be imitated as their answer; `prompt_id`
        is that of the training problem.
      reward: the name of the reward model.
      charset: the characters of a tokenizer of characters, in their order; None for those of the
        texts.
      notes: what the reader of the data left out, in sentences.
    """

    train: Sequence[Prompt]
    held_out: Sequence[Prompt]
    demonstrations: Sequence[Prompt]
    reward: str
    charset: str | None = None
    notes: Sequence[str] = ()
