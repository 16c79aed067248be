"""Maps rows to problems: prompts, answers, and demonstrations."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import reprlib
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl_sync.images import FIELD, Image
from rl_sync.tasks.choices import Choices
from rl_sync.tasks.data_rows import DataRow
from rl_sync.tasks.dialogues import (
    Dialogue,
    dialogue_of,
    is_messages,
    last_reply,
    opening,
)
from rl_sync.tasks.pictures.places import PLACE, PLACEHOLDER, has_images, text_and_images
from rl_sync.tasks.pictures.shown_contents import shown_contents
from rl_sync.tasks.row_formats import RowFormat

_MISSING = object()
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_SHOWN_CHARACTERS = 200


class Example(NamedTuple):
    """A row as a problem.

    Attributes:
      prompt: the question.
      answer: the answer, for rewards; empty if the format or the row has none.
      demonstration: text of the demonstration; None if the row lacks it.
      fields: the row.
      pair: the preferred completion, the rejected one, and the margin; None if the format has no
        pairs.
      dialogue: conversation that replaces the demonstration's text; None if there is none.
      unanswered: complaint that the answer that the format names is missing or empty in the row;
        no complaint is an empty text.
    """

    prompt: str
    answer: str
    demonstration: str | None
    fields: Mapping[str, Any]
    pair: tuple[str, str, float] | None = None
    unanswered: str = ""
    dialogue: Dialogue | None = None


def example(row: DataRow, row_format: RowFormat, placeholder: str = PLACEHOLDER) -> Example:
    """Maps one row to an example.

    Args:
      row: the row.
      row_format: meaning of its fields.
      placeholder: text in conversations that stands for an image; empty for none.

    Raises:
      ValueError: a field other than the answer is missing or empty; a field is not a text, or has
        an unpaired surrogate; or the answer does not match its pattern or the choices. The message
        names file and line.
    """
    choices = None
    if row_format.choices is not None:
        value = _value(row, row_format.choices)
        try:
            choices = Choices.of_field(value)
        except ValueError as error:
            raise _refusal(row, row_format.choices, str(error)) from error
    unanswered = _unanswered(row, row_format.answer)
    answer = "" if unanswered else _answer(row, row_format, choices)
    demonstration: str | None = answer or None
    if row_format.demonstration is not None:
        shown = _lookup(row.fields, row_format.demonstration)
        there = shown not in (_MISSING, None, "") and not is_messages(shown)
        demonstration = _text(row, row_format.demonstration, lines=True) if there else None
    pair = _pair(row, row_format)
    prompt, in_parts = _prompt(row, row_format, choices)
    dialogue = _dialogue(row, row_format, placeholder)
    if dialogue is None and row_format.demonstration is not None:
        demonstration = _reply_about_images(row, row_format.demonstration) or demonstration
    of_dialogue = dialogue is not None and bool(dialogue.images)
    if dialogue is not None and of_dialogue and _asks_as_shown(row, row_format):
        first = next(line for line in dialogue.lines if line.role == "user")
        prompt, images = first.content + _lines(choices), list(first.images)
    else:
        images = _images(row, row_format.images, in_parts)
    fields = row.fields
    if images or (FIELD in fields and (of_dialogue or row_format.images != FIELD)):
        fields = {name: value for name, value in fields.items() if name != FIELD}
        fields |= {FIELD: images} if images else {}
    found = Example(
        prompt=prompt,
        answer=answer,
        demonstration=demonstration,
        fields=fields,
        pair=pair,
        unanswered=unanswered,
        dialogue=dialogue,
    )
    texts = {name: getattr(found, name) for name in ("prompt", "answer", "demonstration")}
    texts |= dict(zip(("chosen completion", "rejected completion"), pair or (), strict=False))
    if dialogue is not None:
        texts["demonstration"] = json.dumps(dialogue, ensure_ascii=False, default=str)
    for name, text in texts.items():
        if text is not None and (half := _HALF_CHARACTER.search(text)):
            raise ValueError(
                f"{row.where}: the {name} holds half a character, \\u{ord(half[0]):04x}: a"
                " surrogate counts only in a pair with its other half. Write the character itself."
            )
    return found


def _prompt(row: DataRow, row_format: RowFormat, choices: Choices | None) -> tuple[str, list[Any]]:
    """Returns the question, and the images in the parts of its message."""
    if row_format.template is not None:
        return _Filler(row, row_format.choices, choices).format(row_format.template), []
    assert row_format.prompt is not None, "a format has a template or a prompt"
    value, images = _lookup(row.fields, row_format.prompt), list[Any]()
    if is_messages(value):
        asked: Any = next((one.get("content") for one in value if one["role"] == "user"), None)
        try:
            text, images = text_and_images(asked) if has_images(asked) else (opening(value), [])
        except ValueError as error:
            raise _refusal(row, row_format.prompt, str(error)) from error
        if not text.replace(PLACE, "").strip() and not images:
            raise _refusal(row, row_format.prompt, "has no message of a user, which would be asked")
    else:
        text = _text(row, row_format.prompt)
    return text + _lines(choices), images


def _lines(choices: Choices | None) -> str:
    return "" if choices is None else f"\n{choices.lines()}"


def _asks_as_shown(row: DataRow, row_format: RowFormat) -> bool:
    """Says whether the question is the first one of the conversation to imitate."""
    if row_format.template is not None or row_format.prompt is None:
        return False
    asked = _lookup(row.fields, row_format.prompt)
    return is_messages(asked) and asked == _lookup(row.fields, row_format.demonstration or "")


def _images(row: DataRow, field: str | None, in_parts: Sequence[Any]) -> list[Image]:
    """Returns the images of a row: those in the parts of its message, and those of its field.

    A part without an image of its own shows the next image of the field.
    """
    of_field = iter(_of_field(row, field))
    named: list[tuple[str, Any]] = []
    for one in in_parts:
        part = [("the message's image", one)]
        named += part if one is not None else itertools.islice(of_field, 1)
    return [_image(row, name, one) for name, one in (*named, *of_field)]


def _of_field(row: DataRow, field: str | None) -> list[tuple[str, Any]]:
    """Returns the images of a field, each with its name in messages."""
    value = None if field is None else _lookup(row.fields, field)
    if value is _MISSING or value is None or (isinstance(value, str) and not value):
        value = []
    values = value if isinstance(value, list | tuple) else [value]
    return [(f"{field!r} [{number}]", one) for number, one in enumerate(values)]


def _image(row: DataRow, name: str, value: Any) -> Image:
    place = f"{row.where}: {name}"
    try:
        image = Image.of(value)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    return dataclasses.replace(image, place=place, path=_found(image.path, row.folder))


def _found(path: str | None, folder: Path | None) -> str | None:
    """Returns the path of an image, which may be relative to its row's file."""
    if path is None or folder is None or Path(path).is_absolute():
        return path
    beside = folder / path
    return str(beside) if beside.is_file() else path


def _reply_about_images(row: DataRow, field: str) -> str | None:
    """Returns the only reply in messages with images; None if the field is no such list."""
    messages = _lookup(row.fields, field)
    if not is_messages(messages) or not _shows(messages):
        return None
    return _last_reply(row, field, messages)


def _shows(messages: Sequence[Mapping[str, Any]]) -> bool:
    return any(has_images(one.get("content")) for one in messages)


def _dialogue(row: DataRow, row_format: RowFormat, placeholder: str) -> Dialogue | None:
    """Returns the conversation that is a row's demonstration, if there is one.

    One question about images with one answer is no conversation: its problem is demonstrated.
    """
    field = row_format.demonstration
    messages: Any = _MISSING if field is None else _lookup(row.fields, field)
    if field is None or not is_messages(messages):
        return None
    roles = [one["role"] for one in messages if one["role"] != "system"]
    if _shows(messages) and roles == ["user", "assistant"]:
        return None
    tools = None if row_format.tools is None else _lookup(row.fields, row_format.tools)
    of_field = _of_field(row, row_format.images)
    try:
        contents = shown_contents(messages, placeholder, len(of_field), row_format.images)
        texts = [
            one if content is None else {**one, "content": content.text}
            for one, content in zip(messages, contents, strict=True)
        ]
        dialogue = dialogue_of(texts, None if tools is _MISSING else tools)
    except ValueError as error:
        raise _refusal(row, field, str(error)) from error
    rest = iter(of_field)
    shown = [
        tuple(
            _image(row, *(next(rest) if value is None else (f"{field!r} message {number}", value)))
            for value in (() if content is None else content.images)
        )
        for number, content in enumerate(contents, start=1)
    ]
    lines = zip(dialogue.lines, shown, strict=False)  # What follows the last reply is left out.
    return dialogue._replace(lines=tuple(line._replace(images=images) for line, images in lines))


def _unanswered(row: DataRow, field: str | None) -> str:
    """Returns a complaint if the field of the answer is missing or empty, or an empty text."""
    if field is None:
        return ""
    value = _lookup(row.fields, field)
    if value is _MISSING:
        return str(_missing(row, field))
    is_empty = value is None or (isinstance(value, str) and not value.strip())
    return str(_not_text(row, field, value)) if is_empty else ""


def _answer(row: DataRow, row_format: RowFormat, choices: Choices | None) -> str:
    field = row_format.answer
    if field is None:
        return ""
    if choices is not None and row_format.answer_pattern is None:
        return _letter(row, field, choices, _value(row, field))
    value = _lookup(row.fields, field)
    text = _last_reply(row, field, value) if is_messages(value) else _text(row, field, lines=True)
    if row_format.answer_pattern is not None:
        text = _last_match(row_format.answer_pattern, text)
        if not text:
            there = _shown(_value(row, field))
            raise _refusal(row, field, f"is {there}, which has no {row_format.answer_pattern}")
    return text if choices is None else _letter(row, field, choices, text)


def _last_reply(row: DataRow, field: str, messages: Sequence[Mapping[str, Any]]) -> str:
    try:
        return last_reply(messages)
    except ValueError as error:
        raise _refusal(row, field, str(error)) from error


def _pair(row: DataRow, row_format: RowFormat) -> tuple[str, str, float] | None:
    if row_format.chosen is None or row_format.rejected is None:
        return None
    margin: Any = 0.0
    if row_format.margin is not None:
        margin = _value(row, row_format.margin)
        number = isinstance(margin, int | float) and not isinstance(margin, bool)
        if not number or not math.isfinite(margin) or margin < 0:
            raise _refusal(row, row_format.margin, f"is {_shown(margin)}; it must be 0 or more.")
    return _reply(row, row_format.chosen), _reply(row, row_format.rejected), float(margin)


def _reply(row: DataRow, field: str) -> str:
    """Returns a completion: a text, or the content of the last message of a list."""
    value = _value(row, field)
    last = value[-1] if isinstance(value, list) and value else None
    if isinstance(last, Mapping) and isinstance(last.get("content"), str):
        return last["content"]
    return _text(row, field)


def _last_match(pattern: str, text: str) -> str:
    """Returns the last match's last group, or the match if it has no groups, or an empty text."""
    matches = list(re.finditer(pattern, text))
    return (matches[-1][matches[-1].lastindex or 0] or "").strip() if matches else ""


def _letter(row: DataRow, field: str, choices: Choices, answer: Any) -> str:
    try:
        return choices.letter(answer)
    except ValueError as error:
        raise _refusal(row, field, str(error)) from error


class _Filler(string.Formatter):
    """Fills the fields of a row into a template."""

    def __init__(self, row: DataRow, choices_field: str | None, choices: Choices | None):
        self._row, self._choices = row, choices
        self._choices_names = () if choices_field is None else (
            choices_field,
            *choices_field.split("|"),
        )  # fmt: skip

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Returns the text of a field; names in a template are paths, not Python attributes."""
        del args, kwargs
        if self._choices is not None and field_name in self._choices_names:
            return self._choices.lines(), field_name
        return _text(self._row, field_name, lines=True), field_name


def _text(row: DataRow, field: str, lines: bool = False) -> str:
    """Returns a field that is a text or a number, or with `lines` a list of texts, as text."""
    value = _value(row, field)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, float) and math.isfinite(value):
        value = str(value)
    if lines and isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "\n".join(value)
    if not isinstance(value, str) or not value.strip():
        raise _not_text(row, field, value)
    return value


def _value(row: DataRow, field: str) -> Any:
    value = _lookup(row.fields, field)
    if value is _MISSING:
        raise _missing(row, field)
    return value


def _lookup(fields: Mapping[str, Any], field: str) -> Any:
    """Returns the first existing value among the paths of `a.b|c`, or `_MISSING`."""
    values = [_at(fields, path) for path in field.split("|")]
    # In a data set, a field that a row lacks and other rows have is null.
    given = [value for value in values if value is not _MISSING and value is not None]
    return given[0] if given else None if None in values else _MISSING


def _at(fields: Mapping[str, Any], path: str) -> Any:
    if path in fields:
        return fields[path]
    value: Any = fields
    for name in path.split("."):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _MISSING
    return value


def _missing(row: DataRow, field: str) -> ValueError:
    there = ", ".join(map(repr, row.fields)) or "no fields"
    return _refusal(
        row, field, f"is missing; it must be text that is not empty. The row has {there}."
    )


def _not_text(row: DataRow, field: str, value: Any) -> ValueError:
    return _refusal(row, field, f"is {_shown(value)}; it must be text that is not empty.")


def _refusal(row: DataRow, field: str, complaint: str) -> ValueError:
    return ValueError(f"{row.where}: {field!r} {complaint}")


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else reprlib.repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"…{text[-_SHOWN_CHARACTERS:]}"
