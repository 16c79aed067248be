"""Asks about handwritten digits: the 1,797 images of 8 times 8 pixels that scikit-learn ships.

The policy is asked which digit it sees, and `row["images"]` has the image. With `as_text` the image
is written as characters in front of the question instead, with denser characters for darker ink, so
that a text-only policy can learn the task. Source: Alpaydin and Kaynak 1998, "Optical Recognition
of Handwritten Digits", UCI.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from rl_sync.images import FIELD, Image
from rl_sync.setting import check, setting
from rl_sync.tasks import optional_packages
from rl_sync.tasks.problems import Problems
from rl_sync.types import Prompt

_INK = ".:+#"
_MOST_INK = 16
_QUESTION = "Which digit is this?"
_CHARSET = "".join(sorted(set(_INK + "\n" + _QUESTION + "0123456789")))


@dataclasses.dataclass(frozen=True)
class DigitsConfig:
    """`config.task.digits`."""

    as_text: bool = setting(
        False,
        "Writes the image as characters in front of the question, for policies that read only"
        " text.",
    )
    held_out_problems: int = setting(
        397, "Digits of the 1,797 that are kept out of training, chosen by the seed.", least=1
    )
    demonstrated: float = setting(
        0.2,
        "Fraction of the training problems whose answer is demonstrated in SFT.",
        least=0,
        greatest=1,
    )

    def __post_init__(self) -> None:
        check(self, "task.digits")


def load(config: DigitsConfig, seed: int) -> Problems:
    """Reads the digits, and holds some of them out by the seed.

    Raises:
      ValueError: scikit-learn is not installed, or no digit would be left to train on.
    """
    read = optional_packages.require("sklearn.datasets", "digits").load_digits()
    images, answers = read.images.astype(np.uint8), read.target
    if config.held_out_problems >= len(answers):
        raise ValueError(
            f"task.digits.held_out_problems={config.held_out_problems} leaves none of the"
            f" {len(answers):,} digits to train on: hold out fewer."
        )
    order = np.random.default_rng([seed, len(answers)]).permutation(len(answers))
    held_out, train = (
        [
            _prompt(number, images[i], int(answers[i]), config.as_text)
            for number, i in enumerate(part)
        ]
        for part in (order[: config.held_out_problems], order[config.held_out_problems :])
    )
    shown = train[: round(len(train) * config.demonstrated)]
    return Problems(
        train=train,
        held_out=held_out,
        demonstrations=[prompt._replace(row=None) for prompt in shown],
        reward="vision",
        charset=_CHARSET,
    )


def _prompt(number: int, ink: np.ndarray, answer: int, as_text: bool) -> Prompt:
    if as_text:
        text = f"{_written(ink)}{_QUESTION}"
        return Prompt(number, text, str(answer), {"kind": "count"})
    grays = 255 - (ink.astype(int) * 255 // _MOST_INK)
    image = Image.of_array(grays.astype(np.uint8))
    return Prompt(number, _QUESTION, str(answer), {"kind": "count", FIELD: [image]})


def _written(ink: np.ndarray) -> str:
    """Writes an image as lines of characters."""
    levels = np.minimum(ink.astype(int) * len(_INK) // (_MOST_INK + 1), len(_INK) - 1)
    return "".join("".join(_INK[level] for level in line) + "\n" for line in levels)
