"""Problems of a task as text; a loader returns them before they are tokenized."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rl_sync.types import Preference, Prompt


@dataclasses.dataclass(frozen=True)
class Problems:
    """The problems of a task, as text.

    Attributes:
      train: problems to train on; `train[i].prompt_id == i`.
      held_out: other problems, for evaluation.
      demonstrations: training problems whose answer is the text to imitate; `prompt_id` is the id
        of the training problem.
      reward: the expression of the task's own reward; see `rl_sync.expression`.
      preferences: pairs of completions of training problems.
      held_out_preferences: pairs of held-out problems.
      charset: the characters of a tokenizer of characters, in order; None for those in the texts.
      notes: sentences about data that was left out.
    """

    train: Sequence[Prompt]
    held_out: Sequence[Prompt]
    demonstrations: Sequence[Prompt]
    reward: str = "exact"
    preferences: Sequence[Preference] = ()
    held_out_preferences: Sequence[Preference] = ()
    charset: str | None = None
    notes: Sequence[str] = ()
