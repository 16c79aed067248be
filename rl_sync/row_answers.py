"""The answer of a data row: its text, and the form in which rewards get it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def answer_text(answer: Any) -> str:
    """Returns an answer as text.

    A list of texts becomes lines. Other lists, objects, true and false become JSON.
    """
    if isinstance(answer, str):
        return answer
    if isinstance(answer, list | tuple) and all(isinstance(one, str) for one in answer):
        return "\n".join(answer)
    if isinstance(answer, bool | list | tuple | Mapping):
        return json.dumps(answer, ensure_ascii=False, default=str)
    return str(answer)


def answer_for_rewards(row: Mapping[str, Any], text: str) -> Any:
    """Returns the answer of a problem in the form in which rewards get it.

    This is its text, unless the field `answer` of the row is the same answer as a list, an object,
    true or false, or as the index of one of its `choices`.

    Args:
      row: the fields of the row.
      text: the answer as text.
    """
    given = row.get("answer")
    has_form = isinstance(given, bool | list | tuple | Mapping) or (
        isinstance(given, int) and "choices" in row
    )
    return given if has_form and answer_text(given) == text else text


def without_padding(value: Any) -> Any:
    """Returns an object without nulls, a list without the nulls at its end, or any other value.

    Tables pad short lists and objects with nulls.
    """
    if isinstance(value, Mapping):
        return {name: one for name, one in value.items() if one is not None}
    if not isinstance(value, list | tuple):
        return value
    length = len(value)
    while length and value[length - 1] is None:
        length -= 1
    return list(value[:length])
