"""Makes products to work out by repeated addition: completions of very different lengths.

`7*12+58=` asks to add 7 twelve times to 58. The working starts with eleven additions left and 65,
`11:560`, and continues to `00:241` and the answer, `#241`. Numbers of a working are written from
the units up. The number of additions is log-normal: most problems have few, some have many.

The demonstrations come from a pupil who tires. He loses count and leaves out the last addition:
rarely if there are few additions, and usually if there are many. A policy that imitates him adds
well, but leaves out the last addition if there are many. Only the reward says that this is wrong,
and the reward only looks at the answer.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from rl_sync.setting import check, setting
from rl_sync.tasks.problems import Problems, TaskKind
from rl_sync.types import Prompt

_DEMONSTRATIONS_PER_PROBLEM = 4
_TERMS = range(2, 10)
_STARTS = range(10, 100)
_MOST_ADDITIONS = 99  # The largest count with two digits.


@dataclasses.dataclass(frozen=True)
class WorkedConfig:
    """`config.task.worked`.

    Raises:
      ValueError: a value is outside its range.
    """

    problems: int = setting(6000, "Problems to train on.", least=1)
    held_out_problems: int = setting(512, "Number of held-out problems.", least=1)
    median_additions: float = setting(
        5.0, "Median number of additions in a problem; the number is log-normal.", above=0
    )
    spread: float = setting(
        0.9, "Standard deviation of the logarithm of the number of additions.", above=0
    )
    most_additions: int = setting(
        34,
        "Maximum number of additions in a problem; the working counts them with two digits.",
        least=1,
        greatest=_MOST_ADDITIONS,
    )
    tired_after: int = setting(
        6, "Number of additions after which the demonstrations' pupil is tired.", least=0
    )
    slip: float = setting(
        0.25,
        "Probability that a demonstration leaves out the last addition, while the pupil is fresh.",
        least=0,
        greatest=1,
    )
    tired_slip: float = setting(
        0.75,
        "Probability that a demonstration leaves out the last addition, once the pupil is tired.",
        least=0,
        greatest=1,
    )

    def __post_init__(self) -> None:
        check(self, "task.worked")


def load(config: WorkedConfig, seed: int) -> Problems:
    """Draws different problems, and holds some of them out by the seed.

    Raises:
      ValueError: there are not enough different problems.
    """
    counts = range(1, config.most_additions + 1)
    everything = list(itertools.product(_TERMS, counts, _STARTS))
    wanted = config.problems + config.held_out_problems
    if wanted > len(everything):
        raise ValueError(
            f"task.worked.problems={config.problems} and held_out_problems="
            f"{config.held_out_problems} are more than the {len(everything)} problems with at most"
            f" most_additions={config.most_additions}."
        )
    random = np.random.default_rng([seed, wanted])
    weights = np.array([_weight(count, config) for _, count, _ in everything])
    chosen = random.choice(len(everything), wanted, replace=False, p=weights / weights.sum())
    drawn = [everything[i] for i in chosen]
    train, held_out = drawn[: config.problems], drawn[config.problems :]
    return Problems(
        train=[Prompt(i, text(*problem), answer(*problem)) for i, problem in enumerate(train)],
        held_out=[Prompt(i, text(*one), answer(*one)) for i, one in enumerate(held_out)],
        demonstrations=[
            Prompt(i, text(term, count, start), tired_working(term, count, start, config, random))
            for _ in range(_DEMONSTRATIONS_PER_PROBLEM)
            for i, (term, count, start) in enumerate(train)
        ],
        reward="final_answer",
        charset="0123456789*+=:#",
    )


def _weight(count: int, config: WorkedConfig) -> float:
    """Computes the density of the log-normal distribution, up to a factor."""
    deviations = np.log(count / config.median_additions) / config.spread
    return float(np.exp(-(deviations**2) / 2) / count)


def text(term: int, count: int, start: int) -> str:
    """Returns the problem of adding `term` to `start` `count` times."""
    return f"{term}*{count:02}+{start}="


def answer(term: int, count: int, start: int) -> str:
    """Returns the right answer, units first."""
    return _written(start + term * count, 3)


def working(term: int, count: int, start: int, done: int) -> str:
    """Returns the first `done` additions, each with the number of additions left, and the total."""
    steps = (
        f"{_written(count - i, 2)}:{_written(start + term * i, 3)}" for i in range(1, done + 1)
    )
    return "".join(steps) + f"#{_written(start + term * done, 3)}"


def tired_working(
    term: int, count: int, start: int, config: WorkedConfig, random: np.random.Generator
) -> str:
    """Returns the pupil's working, in which he may lose count and leave out the last addition."""
    slip = config.tired_slip if count > config.tired_after else config.slip
    return working(term, count, start, count - int(random.random() < slip))


def _written(number: int, digits: int) -> str:
    """Writes a number with a fixed width, units first."""
    return f"{number:0{digits}}"[::-1]


TASK = TaskKind(
    WorkedConfig, load, "Long sums that are worked out, demonstrated by a pupil who tires."
)
