"""Inputs and result of a reward.

A reward is a callable `reward(row, completion)`, such as a function or a frozen dataclass whose
fields are its options. `row` is the row of the data that the prompt was made from.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from rl_sync.ending import Ending
from rl_sync.row_answers import answer_text
from rl_sync.thoughts import split

_GREATEST = 3.4e38
"""The largest reward: rewards are stored as float32."""

Row = Mapping[str, Any]
"""A row of data by field. Rewards get `prompt`, `answer` and every other field of the row."""

MESSAGES = "prompt_messages"
"""Field of a row: the messages of its prompt, if they are more than one text of a user."""

TOOLS = "prompt_tools"
"""Field of a row: JSON schemas of the tools that the messages of its prompt speak of."""

ONE_MESSAGE = "prompt_is_message"
"""Field of a row: true if its prompt was given as a list of one user's message, whose text is
asked."""


def right_text(row: Row) -> str:
    """Returns the answer of a row, without white space around, for rewards that compare texts.

    The texts of a list are lines.

    Raises:
      ValueError: the answer is an object, or a list of other things than texts.
    """
    answer = row["answer"]
    if isinstance(answer, Mapping) or (
        isinstance(answer, list | tuple) and not all(isinstance(one, str) for one in answer)
    ):
        raise ValueError(
            f"row['answer']={reprlib.repr(answer)} is no text to compare with: use a reward that"
            " reads it, such as task.reward=k12, or name another field in task.dataset.answer."
        )
    return answer_text(answer).strip()


@dataclasses.dataclass(frozen=True)
class Completion:
    """A completion to judge.

    Made from a reply alone, as `Completion(reply)`, it splits off the reply's thoughts; see
    `rl_sync.thoughts.split`.

    Attributes:
      text: the answer: the reply without its thoughts and without the end of sequence. It is empty
        if the reply was cut inside its thoughts.
      tokens: the token ids of the whole reply, the end of sequence included.
      truncated: whether a limit ended the completion: its own, or that of its episode.
      ending: the end of the episode that this completion closes; None without an environment.
      begun: what the prompt has already written of the reply, such as `<think>` and a line break.
      reply: the whole reply, if `text` is already its answer; None to split `text`.
    """

    text: str
    tokens: Sequence[int] = ()
    truncated: bool = False
    ending: Ending | None = None
    begun: str = ""
    reply: str | None = None

    def __post_init__(self) -> None:
        if self.reply is None:
            reply, answer = self.text, split(self.text, self.begun).answer
            if answer != reply:
                object.__setattr__(self, "text", answer)
                object.__setattr__(self, "reply", reply)

    @property
    def whole(self) -> str:
        """The whole reply, thoughts included, without what the prompt has begun."""
        return self.text if self.reply is None else self.reply

    def with_thoughts(self) -> Completion:
        """Returns the completion with the whole reply as its text."""
        return dataclasses.replace(self, text=self.whole, reply=self.whole)

    def without_thoughts(self) -> Completion:
        """Returns the completion as if its answer were the whole reply."""
        return dataclasses.replace(self, reply=self.text, begun="")


@dataclasses.dataclass(frozen=True)
class Judgement:
    """A score with its reason.

    Attributes:
      score: the reward, usually from 0 to 1; None if the completion could not be judged.
      why: a short reason, such as the extracted answer, the failing test or the time limit.
      components: numbers by name, such as the parts of the score. Each is logged as `reward/NAME`.
      answer: the answer in the completion, in canonical form: equal answers are equal texts. None
        if the reward reads no answer. Evaluations vote on it: `majority@k`.

    Raises:
      ValueError: the score or a component is not finite in float32.
    """

    score: float | None
    why: str = ""
    components: Mapping[str, float] = dataclasses.field(default_factory=dict)
    answer: str | None = None

    def __post_init__(self) -> None:
        if self.score is not None:
            _require_finite("score", self.score)
        for name, value in self.components.items():
            _require_finite(name, value)

    @classmethod
    def unknown(cls, why: str) -> Judgement:
        """Makes the judgement of a completion that could not be judged: it has no score."""
        return cls(score=None, why=why)

    @property
    def is_known(self) -> bool:
        """True if the completion was judged."""
        return self.score is not None


NOT_APPLICABLE = Judgement.unknown("does not apply")
"""The judgement of a term that does not count for a row; a sum then has the others."""


def _require_finite(name: str, value: object) -> None:
    if not _is_finite(value):
        raise ValueError(f"A reward must return finite numbers, and its {name} is {_shown(value)}.")


def _is_finite(value: Any) -> bool:
    try:
        return bool(-_GREATEST <= value <= _GREATEST)
    except (TypeError, ValueError, ArithmeticError):
        return False


def _shown(value: object) -> str:
    if type(value) is int:
        return "beyond float32"  # Python refuses to print integers of thousands of digits.
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
