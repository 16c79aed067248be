"""A reward for school questions of several kinds. docs/rewards-k12.md describes each kind."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rl_sync.rewards.answers.extraction import extract, strategies_of
from rl_sync.rewards.judgement import Completion, Judgement, Row
from rl_sync.rewards.school.choice_answer import ChoiceQuestion
from rl_sync.rewards.school.listed_answers import BlanksQuestion, MatchQuestion, OrderQuestion
from rl_sync.rewards.school.quantity import NumberQuestion, quantity
from rl_sync.rewards.school.question import Question, UnjudgeableError, refuse, shown
from rl_sync.rewards.school.short_text import TextQuestion
from rl_sync.rewards.school.truth import TruthQuestion
from rl_sync.row_answers import without_padding
from rl_sync.spelling import require_one_of

KINDS: dict[str, type[Question]] = {
    "choice": ChoiceQuestion,
    "true_false": TruthQuestion,
    "blanks": BlanksQuestion,
    "number": NumberQuestion,
    "order": OrderQuestion,
    "match": MatchQuestion,
    "text": TextQuestion,
}
_LISTS = {"blanks", "order", "match"}
_FOR_LISTS = {"answer_is": "answer_block", "last_line": "last_block"}
"""The strategy that reads several lines, by the strategy that it replaces."""

_MOST_CHARACTERS = 2000


def kind_of(row: Row) -> str:
    """Returns the kind of a row's question: its field `kind`, or a guess from its other fields.

    Raises:
      ValueError: the field names no kind.
    """
    if row.get("kind") is not None:
        require_one_of("row['kind']", row["kind"], KINDS)
        return row["kind"]
    answer = row.get("answer")
    if row.get("choices") is not None:
        return "choice"
    if isinstance(answer, bool) or str(answer).strip().lower() in {"true", "false"}:
        return "true_false"
    if isinstance(answer, Mapping):
        return "match"
    if isinstance(answer, list | tuple):
        return "blanks"
    return "number" if quantity(str(answer)) is not None else "text"


@dataclasses.dataclass(frozen=True)
class SchoolAnswer:
    """Marks the final answer of a completion: 1 or 0, or any number between with `partial`.

    Attributes:
      extract: strategies that find the answer in the completion, tried in order and separated by
        commas; see `rl_sync.rewards.answers.extraction`.
      partial: whether partly right answers get part of the marks. A row's field `partial` overrides
        it.

    Raises:
      ValueError: an unknown strategy.
    """

    extract: str = "boxed,tags,hashes,answer_is,last_line"
    partial: bool = False

    def __post_init__(self) -> None:
        strategies_of(self.extract)

    def check(self, row: Row) -> None:
        """Refuses a row whose question cannot be marked.

        Raises:
          ValueError: a field is missing or malformed.
        """
        row = _of_table(row)
        KINDS[kind_of(row)].of(row)
        self._partial(row)

    def __call__(self, row: Row, completion: Completion) -> Judgement:
        """Judges a completion."""
        row = _of_table(row)
        try:
            kind = kind_of(row)
            question, partial = KINDS[kind].of(row), self._partial(row)
        except ValueError as error:
            return Judgement.unknown(str(error))
        strategies = strategies_of(self.extract)
        if kind in _LISTS:
            strategies = tuple(_FOR_LISTS.get(name, name) for name in strategies)
        found = extract(completion.text, strategies, completion.truncated)
        if found is None or not found.text:
            return Judgement(0.0, f"no answer found by {self.extract}")
        if len(found.text) > _MOST_CHARACTERS:
            return Judgement(0.0, f"the answer has more than {_MOST_CHARACTERS:,} characters")
        try:
            marks = question.mark(found.text)
        except UnjudgeableError as error:
            return Judgement.unknown(str(error))
        share = marks.share if partial else float(marks.share == 1)
        # All right answers get the same vote, and no wrong answer gets it.
        vote = "right" if marks.share == 1 else marks.answer and f"{marks.answer} (not right)"
        why = f"{shown(found.text)} ({found.strategy}): {marks.why}"
        return Judgement(share, why, answer=vote or None)

    def _partial(self, row: Row) -> bool:
        given = row.get("partial", self.partial)
        if not isinstance(given, bool):
            raise refuse(row, "partial", "must be true or false.")
        return given


def _of_table(row: Row) -> Row:
    """Returns a row without the nulls and the JSON texts of a table.

    In a table, what a row lacks is null or an empty text, and a column whose rows differ in their
    types holds JSON.
    """
    given = {name: value for name, value in row.items() if value not in (None, "")}
    has_parts = "choices" in given or given.get("kind") in _LISTS
    for name in ("choices", "answer"):
        value = without_padding(given.get(name))
        if has_parts and isinstance(value, str) and value.lstrip().startswith(("[", "{")):
            value = _parsed(value)
        if value is not None:
            given[name] = value
    choices = given.get("choices")
    if isinstance(choices, Mapping) and set(choices) == {"text", "label"}:
        given["choices"] = _of_texts_and_labels(choices, given.get("answer"))
    return given


def _of_texts_and_labels(choices: Mapping[str, Any], answer: object) -> Any:
    """Returns choices such as ARC's by label, or as a list if the answer is none of the labels."""
    texts, labels = without_padding(choices["text"]), without_padding(choices["label"])
    if not isinstance(texts, list) or not isinstance(labels, list) or len(texts) != len(labels):
        return choices
    return dict(zip(map(str, labels), texts, strict=True)) if answer in labels else texts


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
