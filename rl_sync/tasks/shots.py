"""Makes few-shot prompts: puts solved training problems in front of every question."""

from __future__ import annotations

import collections
import string
from collections.abc import Sequence

import numpy as np

from rl_sync.tasks.problems import Problems
from rl_sync.types import Prompt

TEMPLATE = "Question: {question}\nAnswer: {answer}\n\n"
_FIELDS = ["question", "answer"]


def require_template(template: str) -> None:
    """Checks the template of a solved problem.

    Raises:
      ValueError: it is not a format string with `{question}` and then `{answer}`.
    """
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(
            f"task.shot_template={template!r} is not a format string: {error}."
        ) from error
    fields = [(name, spec, conversion) for _, name, spec, conversion in parts if name is not None]
    if fields != [(name, "", None) for name in _FIELDS]:
        raise ValueError(
            f"task.shot_template={template!r} must have {{question}} once, and after it {{answer}}"
            " once; a literal brace is doubled."
        )


def with_shots(problems: Problems, count: int, seed: int, template: str = TEMPLATE) -> Problems:
    """Puts solved training problems in front of every question, as a text to be continued.

    All questions (of a category, if rows have a `category`) get the same solved problems. The seed
    chooses them from the training problems, from which they are removed.
    Source: Brown et al. 2020, "Language Models are Few-Shot Learners", arXiv:2005.14165.

    Args:
      count: number of solved problems; 0 changes nothing.
      template: text of a solved problem, with `{question}` and `{answer}`. The prompt's own
        question is written with the part before the answer, without trailing spaces, since word
        tokens begin with a space.

      Raises:
        ValueError: a category has too few training problems with an answer, or the template is
          invalid.
    """
    if not count:
        return problems
    require_template(template)
    chosen = _chosen(problems, count, seed)
    used = {id(prompt) for of in chosen.values() for prompt in of}
    heads = {
        category: "".join(template.format(question=one.text, answer=one.answer) for one in of)
        for category, of in chosen.items()
    }
    question = template.partition("{answer}")[0].rstrip(" ")

    def asked(prompts: Sequence[Prompt]) -> list[Prompt]:
        return [
            prompt._replace(text=heads[_category(prompt)] + question.format(question=prompt.text))
            for prompt in prompts
            if id(prompt) not in used
        ]

    return problems.asking(asked(problems.train), asked(problems.held_out))


def _chosen(problems: Problems, count: int, seed: int) -> dict[str, list[Prompt]]:
    """Chooses the solved problems of each category."""
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
