"""Draws problems about images whose answers are equally frequent, so that chance is known.

A policy that ignores the image can only know the question. So every kind of question has *aims*,
such as its possible answers, which take turns: an answer is as frequent as any other, whatever the
question says. No two problems have the same image, so no held-out image is trained on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_sync.images import FIELD, Image
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


def split(
    drawn: Sequence[Prompt], problems: int, demonstrated: float, random: np.random.Generator
) -> Problems:
    """Divides drawn prompts into the first `problems` to train on, and held-out ones.

    Args:
      demonstrated: fraction of the training problems whose answer is demonstrated in SFT.
    """
    train = drawn[:problems]
    shown = random.permutation(len(train))[: round(len(train) * demonstrated)]
    return Problems(
        train=train,
        held_out=[one._replace(prompt_id=i) for i, one in enumerate(drawn[problems:])],
        demonstrations=[train[i]._replace(row=None) for i in sorted(shown)],
        reward="vision",
    )
