"""Exchanges images between problems, to see what a policy learns without seeing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from rl_sync.images import FIELD, images_of
from rl_sync.tasks.problems import Problems
from rl_sync.types import Prompt

_WORD = 0x626C696E
"""Word in the seeds, so that these draws differ from others of the run."""


def with_exchanged_images(problems: Problems, seed: int) -> Problems:
    """Gives each problem the images of another one; questions and answers stay.

    Training problems exchange images with one another, and so do held-out problems. Demonstrations
    show what their training problem shows. Rows without images stay the same.

    Raises:
      ValueError: fewer than two training problems, or held-out problems, have images; or there are
        dialogues about images.
    """
    if any(spoken.dialogue.images for spoken in problems.dialogues):
        raise ValueError(
            "task.exchange_images cannot exchange the images of conversations, and some"
            " demonstrations are conversations about images: set it to false, or name no"
            " demonstrations (task.dataset.demonstration='')."
        )
    random = np.random.default_rng([_WORD, seed])
    train = _exchanged(problems.train, random)
    held_out = _exchanged(problems.held_out, random)
    shown = {prompt.prompt_id: prompt for prompt in train}
    demonstrations = [
        _showing(one, shown[one.prompt_id]) if images_of(one.row or {}) else one
        for one in problems.demonstrations
    ]
    return dataclasses.replace(
        problems, train=train, held_out=held_out, demonstrations=demonstrations
    )


def _exchanged(prompts: Sequence[Prompt], random: np.random.Generator) -> list[Prompt]:
    """Exchanges images along one cycle through all prompts with images, in random order."""
    seeing = [i for i, prompt in enumerate(prompts) if images_of(prompt.row or {})]
    if len(seeing) < 2:
        raise ValueError(
            "task.exchange_images needs at least two training problems and two held-out problems"
            f" with images (the field `images` of their rows), and {len(seeing):,} of"
            f" {len(prompts):,} have some: set it to false."
        )
    order = [seeing[i] for i in random.permutation(len(seeing))]
    exchanged = list(prompts)
    for i, other in zip(order, [*order[1:], order[0]], strict=True):
        exchanged[i] = _showing(prompts[i], prompts[other])
    return exchanged


def _showing(prompt: Prompt, other: Prompt) -> Prompt:
    """Returns a prompt with the images of another."""
    return prompt._replace(row={**(prompt.row or {}), FIELD: (other.row or {})[FIELD]})
