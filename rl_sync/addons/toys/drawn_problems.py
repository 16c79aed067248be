"""Draws problems about images whose answers are equally frequent, so that chance is known.

A policy that ignores the image can only know the question. So every kind of question has *aims*,
such as its possible answers, which take turns: an answer is as frequent as any other, whatever the
question says. No two problems have the same image, so no held-out image is trained on.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rl_sync.images import FIELD, Image
from rl_sync.setting import setting
from rl_sync.spelling import require_one_of
from rl_sync.tasks.problems import Problems
from rl_sync.types import Prompt

_TRIES = 200


class DrawnProblem(NamedTuple):
    """A question about an image.

    Attributes:
      pixels: the image, uint8 [H, W, 3] or [H, W].
      text: the question.
      answer: the right answer.
      fields: other fields of its row; `kind` is the kind for the reward `vision`.
    """

    pixels: np.ndarray
    text: str
    answer: str
    fields: Mapping[str, Any]


class QuestionKind(NamedTuple):
    """A kind of question.

    Attributes:
      aims: values that take turns from problem to problem, such as the possible answers.
      draw: draws a problem with an aim; None if this draw has no such problem.
    """

    aims: Sequence[Any]
    draw: Callable[[Any, np.random.Generator], DrawnProblem | None]


@dataclasses.dataclass(frozen=True)
class DrawnTaskConfig:
    """Settings of a task of drawn problems: how many there are, and how many are demonstrated.

    Attributes:
      section: name of the section in the config.
    """

    section: ClassVar[str]

    problems: int = setting(4000, "Problems to train on.", least=1)
    held_out_problems: int = setting(512, "Number of held-out problems.", least=1)
    demonstrated: float = setting(
        0.1,
        "Fraction of the training problems whose answer is demonstrated in SFT.",
        least=0,
        greatest=1,
    )

    @property
    def wanted(self) -> int:
        """Number of all problems."""
        return self.problems + self.held_out_problems

    def divide(
        self,
        drawn: Sequence[Prompt],
        random: np.random.Generator,
        bounds: Sequence[str],
        way_out: str,
    ) -> Problems:
        """Divides different prompts into the first ones, to train on, and held-out ones.

        Args:
          bounds: settings that bound how many different problems there are.
          way_out: what to change if there are too few.

        Raises:
          ValueError: there are fewer than wanted.
        """
        if len(drawn) < self.wanted:
            bounded = " and ".join(f"{name}={getattr(self, name)}" for name in bounds)
            raise ValueError(
                f"{self.section} has {len(drawn)} different problems with {bounded}, fewer than the"
                f" {self.wanted} wanted: {way_out}."
            )
        train = drawn[: self.problems]
        shown = random.permutation(len(train))[: round(len(train) * self.demonstrated)]
        return Problems(
            train=train,
            held_out=[one._replace(prompt_id=i) for i, one in enumerate(drawn[self.problems :])],
            demonstrations=[train[i]._replace(row=None) for i in sorted(shown)],
            reward="vision",
        )


def named_kinds(section: str, questions: str, known: Collection[str]) -> list[str]:
    """Reads the kinds of questions of a setting, which are separated by commas.

    Args:
      section: name of the task's section, such as `task.board`.

    Raises:
      ValueError: a kind is unknown, or there is none.
    """
    names = [name.strip() for name in questions.split(",") if name.strip()]
    for name in names:
        require_one_of(f"{section}.questions", name, known)
    if not names:
        raise ValueError(f"{section}.questions names no question.")
    return names


def draw_problems(
    kinds: Mapping[str, QuestionKind], wanted: int, random: np.random.Generator
) -> list[Prompt]:
    """Draws problems with different images; the kinds take turns, and so do the aims of each.

    Returns:
      At most `wanted` prompts, numbered from 0; fewer if no further image was found. The category
      of each row is its kind's name.
    """
    turns = {name: itertools.cycle(kind.aims) for name, kind in kinds.items()}
    prompts: list[Prompt] = []
    digests: set[str] = set()
    for name in itertools.islice(itertools.cycle(kinds), wanted):
        aim = next(turns[name])
        for _ in range(_TRIES):
            drawn = kinds[name].draw(aim, random)
            if drawn is not None and (image := Image.of_array(drawn.pixels)).digest not in digests:
                break
        else:
            return prompts
        digests.add(image.digest)
        row = {**drawn.fields, "category": name, FIELD: [image]}
        prompts.append(Prompt(len(prompts), drawn.text, drawn.answer, row))
    return prompts
