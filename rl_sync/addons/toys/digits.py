"""Asks about handwritten digits: the 1,797 images of 8 times 8 pixels that scikit-learn ships.

The policy is asked which digit it sees, or for the sum of two digits side by side, and
`row["images"]` has the image. With `as_text` the image of a digit is written as characters in front
of the question instead, with denser characters for darker ink, so that a text-only policy can learn
the task. Source: Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

from rl_sync.addons.toys import optional_packages
from rl_sync.addons.toys.drawn_problems import named_kinds
from rl_sync.images import FIELD, Image
from rl_sync.setting import check, setting
from rl_sync.tasks.problems import Problems, TaskKind
from rl_sync.types import Prompt

_INK = ".:+#"
_MOST_INK = 16
_TRIES = 100
_READ, _SUM = QUESTIONS = ("read", "sum")
_QUESTION = "Which digit is this?"
_SUM_QUESTION = "What is the sum of the two digits?"
_CHARSET = "".join(sorted(set(_INK + "\n" + _QUESTION + "0123456789")))


@dataclasses.dataclass(frozen=True)
class DigitsConfig:
    """`config.task.digits`.

    Raises:
      ValueError: a kind of question is unknown, or a value is outside its range.
    """

    questions: str = setting(
        _READ,
        "Kinds of questions, separated by commas: `read` asks for a digit, `sum` for the sum of two"
        " digits (only about images).",
    )
    side_pixels: int = setting(
        32,
        "Side of the square image. A digit gets as many times 8 pixels as fit, and each digit of a"
        " sum half of them.",
        unit="pixels",
        least=16,
        greatest=1024,
    )
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

    sum_problems: int = setting(2000, "Sums to train on, of training digits.", least=1)
    held_out_sum_problems: int = setting(
        397, "Number of held-out sums, of held-out digits.", least=1
    )

    def __post_init__(self) -> None:
        check(self, "task.digits")
        named_kinds("task.digits", self.questions, QUESTIONS)
        if self.as_text and _SUM in self.names:
            raise ValueError(
                "task.digits.questions=sum asks about images of two digits, and as text there is"
                " one: leave it out, or set task.digits.as_text=false."
            )

    @property
    def names(self) -> list[str]:
        """Kinds of questions in use."""
        return named_kinds("task.digits", self.questions, QUESTIONS)


class _Digits(NamedTuple):
    """Some of the digits.

    Attributes:
      ink: darkness of each pixel, 0 to 16.
      values: the digit of each image.
    """

    ink: UInt8[np.ndarray, "images 8 8"]
    values: Int[np.ndarray, " images"]


def load(config: DigitsConfig, seed: int) -> Problems:
    """Reads the digits, and holds some of them out by the seed.

    Raises:
      ValueError: scikit-learn is not installed, no digit would be left to train on, or there are
        too few pairs of digits for the sums.
    """
    read = optional_packages.require("sklearn.datasets", "digits").load_digits()
    ink, values = read.images.astype(np.uint8), read.target
    if config.held_out_problems >= len(values):
        raise ValueError(
            f"task.digits.held_out_problems={config.held_out_problems} leaves none of the"
            f" {len(values):,} digits to train on: hold out fewer."
        )
    random = np.random.default_rng([seed, len(values)])
    order = random.permutation(len(values))
    held_out, train = order[: config.held_out_problems], order[config.held_out_problems :]
    asked = _asked(config, "sum_problems", _Digits(ink[train], values[train]), random)
    kept = _asked(config, "held_out_sum_problems", _Digits(ink[held_out], values[held_out]), random)
    shown = asked[: round(len(asked) * config.demonstrated)]
    return Problems(
        train=asked,
        held_out=kept,
        demonstrations=[prompt._replace(row=None) for prompt in shown],
        reward="vision",
        charset=_CHARSET if config.names == [_READ] else None,
    )


def _asked(
    config: DigitsConfig, sums: str, digits: _Digits, random: np.random.Generator
) -> list[Prompt]:
    """Asks about some of the digits; kinds of questions are mixed at random."""
    prompts: list[Prompt] = []
    if _READ in config.names:
        prompts += [_prompt(config, *one) for one in zip(*digits, strict=True)]
    if _SUM in config.names:
        pairs = _pairs(digits.values, getattr(config, sums), random)
        if len(pairs) < getattr(config, sums):
            raise ValueError(
                f"task.digits.{sums}={getattr(config, sums)} are more than the {len(pairs)} that"
                f" were found among {len(digits.values)} digits: use fewer, or more digits."
            )
        prompts += [_sum_prompt(config, digits, left, right) for left, right in pairs]
    if len(config.names) > 1:
        prompts = [prompts[i] for i in random.permutation(len(prompts))]
    return [prompt._replace(prompt_id=i) for i, prompt in enumerate(prompts)]


def _pairs(
    values: Int[np.ndarray, " images"], wanted: int, random: np.random.Generator
) -> list[tuple[int, int]]:
    """Draws different pairs of digits by number; each sum from 0 to 18 takes its turn."""
    of_digit = [np.flatnonzero(values == digit) for digit in range(10)]
    pairs: dict[tuple[int, int], None] = {}
    for total in itertools.islice(itertools.cycle(range(19)), wanted):
        for _ in range(_TRIES):
            left = int(random.integers(max(0, total - 9), min(9, total) + 1))
            parts = of_digit[left], of_digit[total - left]
            if not all(map(len, parts)):
                continue
            pair = int(random.choice(parts[0])), int(random.choice(parts[1]))
            if pair not in pairs:
                pairs[pair] = None
                break
        else:
            break
    return list(pairs)


def _prompt(config: DigitsConfig, ink: np.ndarray, value: int) -> Prompt:
    if config.as_text:
        return Prompt(0, f"{_written(ink)}{_QUESTION}", str(value), {"kind": "count"})
    return _picture(config, [ink], _QUESTION, int(value), _READ)


def _sum_prompt(config: DigitsConfig, digits: _Digits, left: int, right: int) -> Prompt:
    total = int(digits.values[left] + digits.values[right])
    return _picture(config, [digits.ink[left], digits.ink[right]], _SUM_QUESTION, total, _SUM)


def _picture(
    config: DigitsConfig, inks: Sequence[np.ndarray], question: str, answer: int, category: str
) -> Prompt:
    """Draws digits side by side, in the middle of a white square."""
    grays = 255 - np.concatenate(inks, axis=1).astype(int) * 255 // _MOST_INK
    drawn = np.kron(grays, np.ones((config.side_pixels // grays.shape[1],) * 2, int))
    pixels = np.full((config.side_pixels,) * 2, 255, np.uint8)
    top, left = ((config.side_pixels - length) // 2 for length in drawn.shape)
    pixels[top : top + drawn.shape[0], left : left + drawn.shape[1]] = drawn
    row = {"kind": "count", "category": category, FIELD: [Image.of_array(pixels)]}
    return Prompt(0, question, str(answer), row)


def _written(ink: np.ndarray) -> str:
    """Writes an image as lines of characters."""
    levels = np.minimum(ink.astype(int) * len(_INK) // (_MOST_INK + 1), len(_INK) - 1)
    return "".join("".join(_INK[level] for level in line) + "\n" for line in levels)


TASK = TaskKind(DigitsConfig, load, "Handwritten digits, which scikit-learn ships.")
