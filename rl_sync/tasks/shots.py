"""Few-shot prompts: solved training problems in front of every question."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np

from rl_sync.tasks.problems import Problems
from rl_sync.types import Prompt

_QUESTION, _ANSWER = "Question: ", "Answer:"


def with_shots(problems: Problems, count: int, seed: int) -> Problems:
    """Puts solved training problems in front of every question, as a text that is to be continued.

    All questions have the same ones; where rows name a `category`, all of a category have. They are
    drawn by the seed from the training problems, to which they then no longer belong.

    Source: Brown et al. 2020, "Language Models are Few-Shot Learners", arXiv:2005.14165.

    Args:
      count: the number of solved problems; 0 leaves the problems as they are.

    Raises:
      ValueError: a category has too few training problems with an answer.
    """
    if not count:
        return problems
    chosen = _chosen(problems, count, seed)
    used = {id(prompt) for of in chosen.values() for prompt in of}
    heads = {category: _head(of) for category, of in chosen.items()}

    def asked(prompts: Sequence[Prompt]) -> list[Prompt]:
        return [
            prompt._replace(text=f"{heads[_category(prompt)]}{_asked(prompt)}")
            for prompt in prompts
            if id(prompt) not in used
        ]

    return problems.asking(asked(problems.train), asked(problems.held_out))


def _chosen(problems: Problems, count: int, seed: int) -> dict[str, list[Prompt]]:
    """Draws the solved problems of each category."""
    solved: dict[str, list[Prompt]] = collections.defaultdict(list)
    for prompt in problems.train:
        if prompt.answer:
            solved[_category(prompt)].append(prompt)
    chosen = {}
    asked = sorted({_category(one) for one in (*problems.train, *problems.held_out)})
    for number, category in enumerate(asked):
        of = solved[category]
        if len(of) <= count:
            among = f" of the category {category!r}" if category else ""
            raise ValueError(
                f"task.shots={count} takes {count} of the {len(of)} training problems{among} that"
                " have an answer, and leaves none to train on: use fewer, or more problems."
            )
        draws = np.random.default_rng([seed, number]).permutation(len(of))[:count]
        chosen[category] = [of[i] for i in draws]
    return chosen


def _category(prompt: Prompt) -> str:
    return str((prompt.row or {}).get("category", ""))


def _head(solved: Sequence[Prompt]) -> str:
    return "".join(f"{_asked(prompt)} {prompt.answer}\n\n" for prompt in solved)


def _asked(prompt: Prompt) -> str:
    return f"{_QUESTION}{prompt.text}\n{_ANSWER}"
