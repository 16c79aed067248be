"""Mixes several task sets, each with its own weight, reward and environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from rl_sync.expression import parse_sum
from rl_sync.rewards.reward_catalog import SET, by_set, reads_answer
from rl_sync.setting import check, setting
from rl_sync.tasks.dialogues import Spoken
from rl_sync.tasks.problems import Problems
from rl_sync.types import Prompt

NAME = "mixture"
_OPTION = "set"
_EXAMPLE = "`2 * arithmetic + jsonl(path='mine.jsonl', set='mine')`"


@dataclasses.dataclass(frozen=True)
class MixtureConfig:
    """`config.task.mixture`."""

    sets: str | None = setting(
        None,
        f"Tasks with weights, such as {_EXAMPLE}. Options are settings of the task's section, or"
        " options of a function of your own; `set` names the set, which otherwise has the name of"
        " its task.",
        implied="none, and task.name=mixture needs some",
    )
    weights: str = setting(
        "fixed",
        "Shares of the sets among the prompts: `fixed`, by their weights, or `progress`, by their"
        " weights times how much their prompts teach now, 4p(1-p) for success rates p.",
        choices=("fixed", "progress"),
    )

    def __post_init__(self) -> None:
        check(self, "task.mixture")
        if self.sets is not None:
            sets_of(self.sets)


class TaskSet(NamedTuple):
    """A set of a mixture.

    Attributes:
      name: name of the set.
      weight: weight of the set.
      task: name of its task, and `options` its settings.
    """

    name: str
    weight: float
    task: str
    options: Mapping[str, object]


def sets_of(text: str) -> list[TaskSet]:
    """Reads the sets of a mixture.

    Raises:
      ValueError: there are fewer than two sets, two sets have the same name, or a weight is not
        above 0.
    """
    sets = []
    for term in parse_sum(text, "task.mixture.sets"):
        options = {name: value for name, value in term.options.items() if name != _OPTION}
        name = str(term.options.get(_OPTION, term.name.rpartition(":")[2].replace(".", "_")))
        if not name.isidentifier():
            raise ValueError(f"task.mixture.sets: set={name!r} must be letters, digits and _.")
        if not term.weight > 0:
            raise ValueError(f"task.mixture.sets: the weight {term.weight:g} of {name} is not > 0.")
        sets.append(TaskSet(name, term.weight, term.name, options))
    names = [one.name for one in sets]
    double = [name for name in names if names.count(name) > 1]
    if double:
        raise ValueError(
            f"task.mixture.sets has two sets called {double[0]}: give one of them another name, as"
            f" in {_EXAMPLE}."
        )
    if len(sets) < 2:
        raise ValueError(f"task.mixture.sets={text!r} is one set: a mixture has two or more.")
    return sets


def mixed(
    sets: Sequence[TaskSet],
    load: Callable[[TaskSet], Problems],
    played: Collection[str],
) -> Problems:
    """Loads the sets and concatenates them; rows get the field `task_set`.

    Args:
      load: loads the problems of a set.
      played: sets whose environment gives the reward.

    Raises:
      ValueError: a set cannot be loaded (the message names it), or lacks answers.
    """
    parts = [_part(one, load, one.name in played) for one in sets]
    train: list[Prompt] = []
    held_out: list[tuple[float, Prompt]] = []
    demonstrations: list[Prompt] = []
    dialogues: list[Spoken] = []
    notes: list[str] = []
    for one, part in zip(sets, parts, strict=True):
        first = len(train)
        train += [_of_set(prompt, one.name, first) for prompt in part.train]
        # Each set is spread over all places, since an evaluation takes the first problems.
        held_out += [
            ((i + 0.5) / len(part.held_out), _of_set(prompt, one.name, 0))
            for i, prompt in enumerate(part.held_out)
        ]
        demonstrations += [
            prompt._replace(prompt_id=first + prompt.prompt_id) for prompt in part.demonstrations
        ]
        dialogues += [
            spoken._replace(prompt_id=first + spoken.prompt_id) for spoken in part.dialogues
        ]
        notes += [f"{one.name}: {note}" for note in part.notes]
        notes.append(
            f"{one.name}: {len(part.train):,} problems to train on, {len(part.held_out):,} held"
            f" out, weight {one.weight:g}, scored by {part.reward}."
        )
    spread = [prompt for _, prompt in sorted(held_out, key=lambda one: one[0])]
    return Problems(
        train=train,
        held_out=[prompt._replace(prompt_id=i) for i, prompt in enumerate(spread)],
        demonstrations=demonstrations,
        reward=by_set({s.name: p.reward for s, p in zip(sets, parts, strict=True)}),
        charset=_charset(parts),
        notes=notes,
        dialogues=dialogues,
    )


def _part(one: TaskSet, load: Callable[[TaskSet], Problems], is_played: bool) -> Problems:
    """Loads a set; errors name it."""
    try:
        part = load(one)
    except ValueError as error:
        raise ValueError(f"The set {one.name} of task.mixture.sets: {error}") from error
    if is_played:
        part = dataclasses.replace(part, reward="environment")
    if part.unanswered and reads_answer(part.reward):
        raise ValueError(f"The set {one.name} of task.mixture.sets: {part.unanswered}")
    return part


def _charset(parts: Sequence[Problems]) -> str | None:
    """Returns the characters of all sets, each once; None if a set has no charset."""
    charsets = [part.charset for part in parts if part.charset is not None]
    return "".join(dict.fromkeys("".join(charsets))) if len(charsets) == len(parts) else None


def _of_set(prompt: Prompt, name: str, first: int) -> Prompt:
    row = {**(prompt.row or {}), SET: name}
    return prompt._replace(prompt_id=first + prompt.prompt_id, row=row)
