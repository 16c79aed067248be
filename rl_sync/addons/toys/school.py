"""Asks school questions that reasoning-gym generates: arithmetic, word problems, dates, logic.

The seed draws the questions, in equal shares from each generator, and no question occurs twice. The
reward is `k12`. The demonstrations are the right answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rl_sync.addons.toys import optional_packages
from rl_sync.addons.toys.questions import GENERATORS, SchoolQuestion
from rl_sync.expression import parse_calls
from rl_sync.setting import check, setting
from rl_sync.spelling import require_one_of
from rl_sync.tasks.problems import Problems, TaskKind
from rl_sync.types import Prompt

ALL = "all"
_TRIES = 20
_NAME = "school"
_OWN = ("seed", "size")


@dataclasses.dataclass(frozen=True)
class SchoolConfig:
    """`config.task.school`.

    Raises:
      ValueError: a generator is unknown, or a value is outside its range.
    """

    generators: str = setting(
        ALL,
        "Generators of reasoning-gym, separated by commas, or `all`. A generator may have options,"
        " which override the difficulty: `chain_sum(min_digits=2, max_terms=2), gcd`. The"
        f" generators are {', '.join(GENERATORS)}.",
    )
    difficulty: int = setting(
        0, "Level of generators that have several; 0 is the easiest.", least=0, greatest=10
    )
    problems: int = setting(4000, "Problems to train on.", least=1)
    held_out_problems: int = setting(512, "Number of held-out problems.", least=1)

    def __post_init__(self) -> None:
        check(self, "task.school")
        terms = parse_calls(self.generators, "task.school.generators")
        for term in terms:
            require_one_of("task.school.generators", term.name, (ALL, *GENERATORS))
        names = [term.name for term in terms]
        if len(set(names)) < len(names):
            raise ValueError(
                f"task.school.generators={self.generators!r} must name generators, each once."
            )
        if ALL in names and (len(names) > 1 or terms[0].options):
            raise ValueError(
                f"task.school.generators={self.generators!r}: `all` stands alone, without options."
            )

    @property
    def options(self) -> dict[str, Mapping[str, Any]]:
        """Options of each generator in use."""
        terms = parse_calls(self.generators)
        if [term.name for term in terms] == [ALL]:
            return {name: {} for name in GENERATORS}
        return {term.name: term.options for term in terms}


class GeneratorSource(NamedTuple):
    """A generator with a level of difficulty, and options that override those of the level."""

    name: str
    difficulty: int
    options: Mapping[str, Any]


def load(config: SchoolConfig, seed: int) -> Problems:
    """Generates different problems, and holds some of them out by the seed.

    Raises:
      ValueError: reasoning-gym is not installed, or the generators have too few questions.
    """
    gym = optional_packages.require("reasoning_gym", _NAME)
    wanted = config.problems + config.held_out_problems
    share = -(-wanted // len(config.options))
    notes: list[str] = []
    asked: dict[str, tuple[str, SchoolQuestion]] = {}
    for name, options in config.options.items():
        before = len(asked)
        for question in _questions(
            gym, GeneratorSource(name, config.difficulty, options), seed, share
        ):
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


def _questions(
    gym: ModuleType, source: GeneratorSource, seed: int, count: int
) -> list[SchoolQuestion]:
    """Returns `count` different questions of a generator, or fewer if it has fewer."""
    name = source.name
    # Entry i is made from the sum of the seed and i, so the seeds of generators must lie far apart.
    words = [seed, list(GENERATORS).index(name), source.difficulty]
    start = int(np.random.SeedSequence(words).generate_state(1)[0])
    made = {**_level(gym, name, source.difficulty), **source.options, **GENERATORS[name].options}
    try:
        entries = gym.create_dataset(name, **{**made, "seed": start, "size": count * _TRIES})
    except (AssertionError, TypeError) as error:
        _, config = gym.factory.DATASETS[name]
        has = [field.name for field in dataclasses.fields(config) if field.name not in _OWN]
        raise ValueError(
            f"task.school.generators: {name} cannot be made with {dict(source.options)} and"
            f" difficulty={source.difficulty}: {error}. Its options are {', '.join(has)}."
        ) from error
    found: dict[str, SchoolQuestion] = {}
    for index in range(count * _TRIES):
        question = GENERATORS[name].ask(entries[index])
        if question is not None:
            found.setdefault(question.text, question)
        if len(found) == count:
            break
    return list(found.values())


def _level(gym: ModuleType, name: str, difficulty: int) -> dict[str, Any]:
    """Returns a generator's config values at a level of difficulty."""
    if not gym.factory.has_curriculum(name):
        return {}
    curriculum = gym.factory.create_curriculum(name)
    curriculum.set_global_level(min(difficulty, GENERATORS[name].hardest))
    return dict(vars(curriculum.generate_configuration()))


def _prompt(number: int, name: str, question: SchoolQuestion) -> Prompt:
    row = {"category": name, **question.fields}
    return Prompt(number, question.text, question.answer, row)


TASK = TaskKind(SchoolConfig, load, "School questions that reasoning-gym generates.")
