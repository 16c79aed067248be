"""Two-operand arithmetic, written as text: `47+85=` is answered `132`."""

from __future__ import annotations

import dataclasses
import operator

import numpy as np

from rl_sync.tasks.task import Task
from rl_sync.tasks.tokenizer import CharacterTokenizer
from rl_sync.types import Prompt

_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@dataclasses.dataclass(frozen=True)
class ArithmeticConfig:
    """`config.task.arithmetic`: which problems there are.

    Attributes:
      operators: a string of +, - and *. Differences are not negative.
      least_operand, greatest_operand: both operands lie between them, ends included.
      units_first: whether the answer is written from its units up (`47+85=` is `231`), the order
        in which a person computes it.
      held_out_problems: how many are kept out of training, in a seeded choice.

    Raises:
      ValueError: a value outside its range.
    """

    operators: str
    least_operand: int
    greatest_operand: int
    units_first: bool
    held_out_problems: int

    def __post_init__(self) -> None:
        unknown = [name for name in self.operators if name not in _OPERATORS]
        if unknown or not self.operators:
            raise ValueError(
                f"task.arithmetic.operators={self.operators!r} must be made of"
                f" {' '.join(_OPERATORS)}."
            )
        if not 0 <= self.least_operand <= self.greatest_operand:
            raise ValueError(
                f"task.arithmetic.least_operand={self.least_operand} must be at least 0 and at most"
                f" greatest_operand={self.greatest_operand}."
            )
        if self.held_out_problems < 1:
            raise ValueError("task.arithmetic.held_out_problems must be at least 1.")


def load(config: ArithmeticConfig, seed: int) -> Task:
    """Makes the problems, and holds some out by the seed.

    Raises:
      ValueError: as many or more are held out than there are.
    """
    problems = [
        _problem(config, name, a, b)
        for name in config.operators
        for a in range(config.least_operand, config.greatest_operand + 1)
        for b in range(config.least_operand, config.greatest_operand + 1)
        if name != "-" or a >= b
    ]
    if config.held_out_problems >= len(problems):
        raise ValueError(
            f"task.arithmetic.held_out_problems={config.held_out_problems} leaves none of the"
            f" {len(problems)} problems to train on."
        )
    order = np.random.default_rng([seed, len(problems)]).permutation(len(problems))
    shuffled = [problems[i] for i in order]
    held_out, train = shuffled[: config.held_out_problems], shuffled[config.held_out_problems :]
    return Task(
        train=[Prompt(i, text, answer) for i, (text, answer) in enumerate(train)],
        held_out=[Prompt(i, text, answer) for i, (text, answer) in enumerate(held_out)],
        tokenizer=CharacterTokenizer("0123456789+-*="),
        reward="exact",
        max_prompt_tokens=max(len(text) for text, _ in problems),
        max_completion_tokens=max(len(answer) for _, answer in problems) + 1,
    )


def _problem(config: ArithmeticConfig, name: str, a: int, b: int) -> tuple[str, str]:
    answer = str(_OPERATORS[name](a, b))
    return f"{a}{name}{b}=", answer[::-1] if config.units_first else answer
