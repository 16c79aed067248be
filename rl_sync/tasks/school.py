"""School questions that reasoning-gym generates: arithmetic, word problems, dates, logic.

The questions are drawn by the seed, in equal shares from each generator, and no question is asked
twice. The reward is `k12`. The demonstrations are the right answers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rl_sync.setting import check, setting
from rl_sync.spelling import require_one_of
from rl_sync.tasks import extras
from rl_sync.tasks.problems import Problems
from rl_sync.tasks.questions import GENERATORS, Question
from rl_sync.types import Prompt

ALL = "all"
_TRIES = 20
_NAME = "school"


@dataclasses.dataclass(frozen=True)
class SchoolConfig:
    """`config.task.school`.

    Raises:
      ValueError: an unknown generator, or a value outside its range.
    """

    generators: str = setting(
        ALL,
        f"Generators of reasoning-gym, separated by commas, or `all`: {', '.join(GENERATORS)}.",
    )
    difficulty: int = setting(
        0, "Level of the generators that have several; 0 is the easiest.", least=0, greatest=10
    )
    problems: int = setting(4000, "Problems to train on.", least=1)
    held_out_problems: int = setting(
        512, "Other problems, to measure accuracy on, in a seeded choice.", least=1
    )

    def __post_init__(self) -> None:
        check(self, "task.school")
        for name in self.names:
            require_one_of("task.school.generators", name, (ALL, *GENERATORS))
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(
                f"task.school.generators={self.generators!r} must name generators, each once."
            )

    @property
    def names(self) -> list[str]:
        """The names of the generators."""
        names = [name.strip() for name in self.generators.split(",") if name.strip()]
        return list(GENERATORS) if names == [ALL] else names


def load(config: SchoolConfig, seed: int) -> Problems:
    """Generates problems, each once, and holds some out by the seed.

    Raises:
      ValueError: reasoning-gym is not installed, or the generators do not have as many questions.
    """
    gym = extras.require("reasoning_gym", _NAME)
    wanted = config.problems + config.held_out_problems
    share = -(-wanted // len(config.names))
    notes: list[str] = []
    asked: dict[str, tuple[str, Question]] = {}
    for name in config.names:
        before = len(asked)
        for question in _questions(gym, name, config.difficulty, seed, share):
            asked.setdefault(question.text, (name, question))
        if len(asked) - before < share:
            notes.append(f"{name} has only {len(asked) - before} different questions, not {share}.")
    if len(asked) <= config.held_out_problems:
        raise ValueError(
            f"task.school.held_out_problems={config.held_out_problems} leaves none of the"
            f" {len(asked)} different questions of {config.generators} to train on: hold out fewer,"
            " or name more generators."
        )
    random = np.random.default_rng([seed, wanted])
    drawn = [list(asked.values())[i] for i in random.permutation(len(asked))][:wanted]
    held_out, train = drawn[: config.held_out_problems], drawn[config.held_out_problems :]
    prompts = [_prompt(i, *one) for i, one in enumerate(train)]
    return Problems(
        train=prompts,
        held_out=[_prompt(i, *one) for i, one in enumerate(held_out)],
        demonstrations=[prompt._replace(row=None) for prompt in prompts],
        reward="k12",
        notes=notes,
    )


def _questions(gym: Any, name: str, difficulty: int, seed: int, count: int) -> list[Question]:
    """Returns different questions of a generator; fewer if it has not as many."""
    # Entry i is made from the sum of the seed and i: seeds of generators lie far apart.
    words = [seed, list(GENERATORS).index(name), difficulty]
    start = int(np.random.SeedSequence(words).generate_state(1)[0])
    options = {**_level(gym, name, difficulty), **GENERATORS[name].options}
    entries = gym.create_dataset(name, **{**options, "seed": start, "size": count * _TRIES})
    found: dict[str, Question] = {}
    for index in range(count * _TRIES):
        question = GENERATORS[name].ask(entries[index])
        if question is not None:
            found.setdefault(question.text, question)
        if len(found) == count:
            break
    return list(found.values())


def _level(gym: Any, name: str, difficulty: int) -> dict[str, Any]:
    """Returns the values of a generator's config at a level of difficulty."""
    if not gym.factory.has_curriculum(name):
        return {}
    curriculum = gym.factory.create_curriculum(name)
    curriculum.set_global_level(min(difficulty, GENERATORS[name].hardest))
    return dict(vars(curriculum.generate_configuration()))


def _prompt(number: int, name: str, question: Question) -> Prompt:
    row = {"category": name, **question.fields}
    return Prompt(number, question.text, question.answer, row)
