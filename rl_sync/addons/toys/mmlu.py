"""Loads the 282 multiple-choice questions of MMLU with worked answers, its few-shot examples.

They are real examination questions in 57 subjects, 15 of them school subjects. They come with the
package `lm-eval`, which is large, so no extra of ours requires it: install it, or give a copy of
its file with the questions. Only this file is read. The reward is `k12`. Source: Hendrycks et al.
2021, "Measuring Massive Multitask Language Understanding"; worked answers: Chung et al. 2022,
"Scaling Instruction-Finetuned Language Models".
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from rl_sync.setting import check, setting
from rl_sync.spelling import require_one_of
from rl_sync.tasks.choices import Choices
from rl_sync.tasks.problems import Problems, TaskKind
from rl_sync.types import Prompt

_FILE = "tasks/mmlu/flan_cot_fewshot/_cot_prompts.json"
_WAY_OUT = (
    "Install it (pip install --no-deps lm-eval==0.4.13), or give --config.task.mmlu.path=FILE, a"
    f" copy of its lm_eval/{_FILE}."
)
_SCHOOL = "school"
_ALL = "all"
_QUESTION = re.compile(
    r"^Q:\s*(.*?)\s*\(A\)(.*?)\(B\)(.*?)\(C\)(.*?)\(D\)(.*?)(?:\(E\)(.*?))?\nA:\s*(.*?)(?=\n+Q:|\Z)",
    re.DOTALL | re.MULTILINE,
)
_ANSWER = re.compile(r"The answer is:? \(([A-E])\)")


@dataclasses.dataclass(frozen=True)
class MmluConfig:
    """`config.task.mmlu`."""

    path: str | None = setting(
        None,
        "File of the questions, `_cot_prompts.json` of lm-eval.",
        implied="the file of the installed package lm-eval",
        is_path=True,
    )
    subjects: str = setting(
        _SCHOOL,
        "Subjects, separated by commas, such as `high_school_physics`; `school` for the 15 school"
        " subjects, `all` for all 57.",
    )
    held_out_problems: int = setting(
        50, "Questions that are kept out of training, chosen by the seed.", least=1
    )

    def __post_init__(self) -> None:
        check(self, "task.mmlu")


def load(config: MmluConfig, seed: int) -> Problems:
    """Reads the questions, and holds some of them out by the seed.

    Raises:
      ValueError: the file does not exist or has no questions, a subject is unknown, or no question
        would be left to train on.
    """
    texts = _texts(config.path)
    rows = [row for subject in _subjects(config.subjects, texts) for row in _rows(subject, texts)]
    if config.held_out_problems >= len(rows):
        raise ValueError(
            f"task.mmlu.held_out_problems={config.held_out_problems} leaves none of the"
            f" {len(rows)} questions of {config.subjects} to train on: hold out fewer, or use"
            " subjects=all."
        )
    order = np.random.default_rng([seed, len(rows)]).permutation(len(rows))
    held_out, train = (
        [_prompt(number, rows[i]) for number, i in enumerate(part)]
        for part in (order[: config.held_out_problems], order[config.held_out_problems :])
    )
    return Problems(
        train=train,
        held_out=held_out,
        demonstrations=[
            Prompt(one.prompt_id, one.text, (one.row or {})["working"]) for one in train
        ],
        reward="k12",
    )


def _texts(path: str | None) -> dict[str, str]:
    """Returns the questions of each subject as one text."""
    file = _installed() if path is None else Path(path).expanduser()
    try:
        texts = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not a file of questions: {error}. {_WAY_OUT}") from error
    if not isinstance(texts, dict) or not all(isinstance(one, str) for one in texts.values()):
        raise ValueError(f"{file} must be an object with a text for each subject. {_WAY_OUT}")
    return texts


def _installed() -> Path:
    found = importlib.util.find_spec("lm_eval")  # Not imported, because that is slow.
    if found is None or not found.submodule_search_locations:
        raise ValueError(
            f"task.name=mmlu needs the package lm-eval, which is not installed. {_WAY_OUT}"
        )
    return Path(found.submodule_search_locations[0]) / _FILE


def _subjects(names: str, texts: dict[str, str]) -> list[str]:
    if names == _ALL:
        return list(texts)
    if names == _SCHOOL:
        return [one for one in texts if one.startswith(("high_school_", "elementary_"))]
    listed = [name.strip() for name in names.split(",") if name.strip()]
    for name in listed:
        require_one_of("task.mmlu.subjects", name, (_SCHOOL, _ALL, *texts))
    return listed


def _rows(subject: str, texts: dict[str, str]) -> list[dict[str, Any]]:
    rows = []
    for question, *options, working in _QUESTION.findall(texts[subject]):
        choices = [option.strip() for option in options if option.strip()]
        letter = _ANSWER.search(working)
        if letter is None:
            raise ValueError(
                f"A question of {subject} has no answer: {question[:80]!r}. {_WAY_OUT}"
            )
        rows.append(
            {
                "question": question,
                "answer": letter[1],
                "choices": choices,
                "working": working.strip(),
                "category": subject,
                "kind": "choice",
            }
        )
    if not rows:
        raise ValueError(f"{subject} has no questions. {_WAY_OUT}")
    return rows


def _prompt(number: int, row: dict[str, Any]) -> Prompt:
    lines = Choices(tuple(row["choices"]), ()).lines()
    return Prompt(number, f"{row['question']}\n{lines}", row["answer"], row)


TASK = TaskKind(MmluConfig, load, "Examination questions with options, which lm-eval ships.")
