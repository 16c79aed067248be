"""Makes arithmetic problems of two operands, written from the units up: `47+85=` gives `231`.

The demonstrations come from a careless pupil, who forgets some carries and borrows. A policy that
imitates them learns to write sums, but gets a sum wrong if the pupil usually forgets. Only the
reward says that remembering is right.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Sequence

import numpy as np

from rl_sync.setting import check, setting
from rl_sync.tasks.problems import Problems, TaskKind
from rl_sync.types import Preference, Prompt

_OPERATORS = {"+": operator.add, "-": operator.sub}
_DEMONSTRATIONS_PER_PROBLEM = 4
_MOST_PAIRS = 10_000_000


@dataclasses.dataclass(frozen=True)
class ArithmeticConfig:
    """`config.task.arithmetic`.

    Raises:
      ValueError: a value is outside its range.
    """

    operators: str = setting(
        "+-",
        "Operators of the problems: + and -, each at most once; differences are not negative.",
    )
    least_operand: int = setting(10, "Smallest operand of a problem.", least=0)
    greatest_operand: int = setting(99, "Largest operand of a problem.", least=0)
    forgotten: float = setting(
        0.6,
        "Probability that a demonstration forgets a carry or a borrow.",
        least=0,
        greatest=1,
    )
    held_out_problems: int = setting(
        512, "Problems that are kept out of training, chosen by the seed.", least=1
    )

    def __post_init__(self) -> None:
        check(self, "task.arithmetic")
        unknown = [name for name in self.operators if name not in _OPERATORS]
        if unknown or not self.operators:
            raise ValueError(
                f"task.arithmetic.operators={self.operators!r} must be made of"
                f" {' '.join(_OPERATORS)}."
            )
        if len(set(self.operators)) < len(self.operators):
            raise ValueError(
                f"task.arithmetic.operators={self.operators!r} names an operator twice: problems"
                " that are held out would be trained on too."
            )
        if self.least_operand > self.greatest_operand:
            raise ValueError(
                f"task.arithmetic.least_operand={self.least_operand} must be at most"
                f" greatest_operand={self.greatest_operand}."
            )
        if (self.greatest_operand - self.least_operand + 1) ** 2 > _MOST_PAIRS:
            raise ValueError(
                f"task.arithmetic.least_operand={self.least_operand} to greatest_operand="
                f"{self.greatest_operand} make more than {_MOST_PAIRS:,} pairs, and all problems"
                " are made beforehand: use a narrower range."
            )


def load(config: ArithmeticConfig, seed: int) -> Problems:
    """Makes the problems, and holds some of them out by the seed.

    Raises:
      ValueError: no problem would be left to train on.
    """
    operands = range(config.least_operand, config.greatest_operand + 1)
    problems = [
        (a, name, b)
        for name, a, b in itertools.product(config.operators, operands, operands)
        if name != "-" or a >= b
    ]
    if config.held_out_problems >= len(problems):
        raise ValueError(
            f"task.arithmetic.held_out_problems={config.held_out_problems} leaves none of the"
            f" {len(problems)} problems to train on."
        )
    random = np.random.default_rng([seed, len(problems)])
    shuffled = [problems[i] for i in random.permutation(len(problems))]
    held_out, train = shuffled[: config.held_out_problems], shuffled[config.held_out_problems :]
    return Problems(
        train=[Prompt(i, _text(*problem), answer(*problem)) for i, problem in enumerate(train)],
        held_out=[Prompt(i, _text(*one), answer(*one)) for i, one in enumerate(held_out)],
        demonstrations=[
            Prompt(i, _text(a, name, b), careless_answer(a, name, b, config.forgotten, random))
            for _ in range(_DEMONSTRATIONS_PER_PROBLEM)
            for i, (a, name, b) in enumerate(train)
        ],
        preferences=_preferences(train, config, seed),
        held_out_preferences=_preferences(held_out, config, seed),
        reward="exact",
        charset="0123456789+-=",
    )


def _preferences(
    problems: Sequence[tuple[int, str, int]], config: ArithmeticConfig, seed: int
) -> list[Preference]:
    """Pairs the right answer of each problem with a wrong one of the pupil."""
    random = np.random.default_rng([seed, len(problems), 1])
    return [
        Preference(
            Prompt(i, _text(*problem), answer(*problem)),
            chosen=answer(*problem),
            rejected=_wrong_answer(*problem, config.forgotten, random),
        )
        for i, problem in enumerate(problems)
    ]


def _wrong_answer(a: int, name: str, b: int, forgotten: float, random: np.random.Generator) -> str:
    """Returns the pupil's answer, with one digit changed if it is right."""
    right = answer(a, name, b)
    careless = careless_answer(a, name, b, forgotten, random)
    if careless != right:
        return careless
    place = int(random.integers(len(right)))
    digit = (int(right[place]) + int(random.integers(1, 10))) % 10
    return f"{right[:place]}{digit}{right[place + 1 :]}"


def _text(a: int, name: str, b: int) -> str:
    return f"{a}{name}{b}="


def answer(a: int, name: str, b: int) -> str:
    """Returns the right answer, units first."""
    return str(_OPERATORS[name](a, b))[::-1]


def careless_answer(
    a: int, name: str, b: int, forgotten: float, random: np.random.Generator
) -> str:
    """Returns the answer, units first, of a pupil who may forget each carry or borrow."""
    sign = 1 if name == "+" else -1
    digits, carry = "", 0
    columns = itertools.zip_longest(str(a)[::-1], str(b)[::-1], fillvalue="0")
    for upper, lower in columns:
        value = int(upper) + sign * (int(lower) + carry)
        digits += str(value % 10)
        carry = int(not 0 <= value <= 9 and random.random() >= forgotten)
    if carry and name == "+":
        digits += "1"
    return digits.rstrip("0") or "0"


TASK = TaskKind(ArithmeticConfig, load, "Sums and differences, demonstrated by a careless pupil.")
