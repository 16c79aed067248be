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
from rl_sync.rewards.judgement import MESSAGES, ONE_MESSAGE, TOOLS
from rl_sync.row_answers import answer_text, without_padding
from rl_sync.tasks.choices import Choices
from rl_sync.tasks.data_rows import DataRow
from rl_sync.tasks.dialogues import (
    Dialogue,
    content_of,
    dialogue_of,
    is_messages,
    is_share_gpt,
    last_reply,
    messages_of_share_gpt,
    prompt_of,
)
from rl_sync.tasks.pictures.places import PLACEHOLDER, has_images, text_and_images
from rl_sync.tasks.pictures.shown_contents import shown_contents
from rl_sync.tasks.row_formats import RowFormat
from rl_sync.tasks.tokenizers.prompt_messages import PromptMessages
from rl_sync.tasks.tokenizers.tokenizer import Messages
from rl_sync.thoughts import split

SECTION = "task.dataset"
"""Section of the settings that say what fields mean; other sections only have sources of rows."""

_MISSING = object()
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_SHOWN_CHARACTERS = 200
_USUAL_NAMES = {
    "prompt": ("prompt", "question", "problem", "instruction", "query", "input"),
    "answer": (
        "answer",
        "ground_truth",
        "reward_model.ground_truth",
        "final_answer",
        "solution",
        "target",
        "output",
        "response",
    ),
}
"""Fields that public data sets have for a setting of `task.dataset`, the likelier ones first."""


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


class _OtherFieldError(ValueError):
    """A field does not have what the format expects there, so that another one may be meant.

    Attributes:
      field: the field.
    """

    def __init__(self, message: str, field: str):
        super().__init__(message)
        self.field = field


def example(
    row: DataRow,
    row_format: RowFormat,
    placeholder: str = PLACEHOLDER,
    section: str = SECTION,
) -> Example:
    """Maps one row to an example.

    Args:
      row: the row.
      row_format: meaning of its fields.
      placeholder: text in conversations that stands for an image; empty for none.
      section: section of the settings that have the row's source; see `SECTION`.

    Raises:
      ValueError: a field other than the answer is missing or empty; a field is not a text, or has
        an unpaired surrogate; or the answer does not match its pattern or the choices. The message
        names file and line, and the setting to change.
    """
    try:
        found = _example(row, row_format, placeholder)
    except _OtherFieldError as error:
        raise ValueError(f"{error} {_way_out(row, error.field, row_format, section)}") from error
    if found.unanswered:
        assert row_format.answer is not None, "an answer that is missing has a field"
        way_out = _way_out(row, row_format.answer, row_format, section)
        return found._replace(unanswered=f"{found.unanswered} {way_out}")
    return found


def _way_out(row: DataRow, field: str, row_format: RowFormat, section: str) -> str:
    """Says which setting names another field, and which field of the row may be meant."""
    names = [one.name for one in dataclasses.fields(row_format)]
    named = next((name for name in names if getattr(row_format, name) == field), "template")
    name = "template" if field in row_format.template_fields else named
    there = [path for path in _USUAL_NAMES.get(name, ()) if _at(row.fields, path) is not _MISSING]
    found = next((path for path in there if path != field), None)
    if section != SECTION:
        perhaps = f", perhaps {found!r}" if found else ""
        return f"With task.name=dataset, {SECTION}.{name} can name another field{perhaps}."
    perhaps = f", perhaps to {found!r}" if found else ""
    return f"If another field is meant, change {SECTION}.{name}{perhaps}."


def _example(row: DataRow, row_format: RowFormat, placeholder: str) -> Example:
    choices = None
    if row_format.choices is not None:
        value = _value(row, row_format.choices)
        try:
            choices = Choices.of_field(value)
        except ValueError as error:
            raise _OtherFieldError(*_told(row, row_format.choices, str(error))) from error
    unanswered = _unanswered(row, row_format.answer)
    replied = "" if unanswered else _answer(row, row_format, choices)
    given = None
    if row_format.answer is not None:
        given = without_padding(_lookup(row, row_format.answer))
    # Rewards compare it with the policy's reply, whose thoughts they do not get either.
    answer = (split(replied).answer if is_messages(given) else "") or replied
    demonstration = None if _has_several_answers(given) else replied or None
    if row_format.demonstration is not None:
        shown = _lookup(row, row_format.demonstration)
        there = shown not in (_MISSING, None, "") and not is_messages(shown)
        demonstration = _text(row, row_format.demonstration, lines=True) if there else None
    pair = _pair(row, row_format)
    dialogue = _dialogue(row, row_format, placeholder)
    if dialogue is None and row_format.demonstration is not None:
        demonstration = _only_reply(row, row_format.demonstration) or demonstration
    prompt, asked, images = _prompt(row, row_format, choices, placeholder)
    of_dialogue = dialogue is not None and bool(dialogue.images)
    replaced = {FIELD} if images or of_dialogue or row_format.images != FIELD else set[str]()
    fields = {
        name: value
        for name, value in row.fields.items()
        if name not in {*replaced, MESSAGES, TOOLS, ONE_MESSAGE}
    }
    fields |= {FIELD: images} if images else {}
    if isinstance(given, bool | list | Mapping) and not is_messages(given):
        fields["answer"] = given
    if asked is not None:
        fields |= asked.fields
    elif row_format.template is None and is_messages(_asked_field(row, row_format)[1]):
        fields |= {ONE_MESSAGE: True}
    found = Example(
        prompt=prompt,
        answer=answer,
        demonstration=demonstration,
        fields=fields,
        pair=pair,
        unanswered=unanswered,
        dialogue=dialogue,
    )
    _require_whole_characters(found, row.where)
    return found


def _require_whole_characters(found: Example, where: str) -> None:
    """Rejects texts with an unpaired surrogate, which no tokenizer encodes."""
    texts = {name: getattr(found, name) for name in ("prompt", "answer", "demonstration")}
    texts |= dict(zip(("chosen completion", "rejected completion"), found.pair or (), strict=False))
    if found.dialogue is not None:
        texts["demonstration"] = json.dumps(found.dialogue, ensure_ascii=False, default=str)
    for name, text in texts.items():
        if text is not None and (half := _HALF_CHARACTER.search(text)):
            raise ValueError(
                f"{where}: the {name} holds half a character, \\u{ord(half[0]):04x}: a"
                " surrogate counts only in a pair with its other half. Write the character itself."
            )


def _prompt(
    row: DataRow, row_format: RowFormat, choices: Choices | None, placeholder: str
) -> tuple[str, PromptMessages | None, list[Image]]:
    """Returns the question as text, its conversation if it has one, and its images."""
    if row_format.template is not None:
        text = _filled(row, row_format, choices)
        return text, None, _images(row, row_format.images, [])
    assert row_format.prompt is not None, "a format has a template or a prompt"
    field, value = _asked_field(row, row_format)
    if not is_messages(value):
        text = _text(row, field) + _lines(choices)
        return text, None, _images(row, row_format.images, [])
    end = _end_of_question(row, row_format, value)
    tools = None if row_format.tools is None else _lookup(row, row_format.tools)
    try:
        asked = prompt_of(value[:end], None if tools is _MISSING else tools)
    except ValueError as error:
        raise _refusal(row, field, str(error)) from error
    only = value[0].get("content")
    if not asked.tools and [one["role"] for one in asked.messages] == ["user"] and (
        end == len(value) or not _shows(value[end:])
    ):  # fmt: skip
        text, in_parts = text_and_images(only) if has_images(only) else (content_of(value[0]), [])
        return text + _lines(choices), None, _images(row, row_format.images, in_parts)
    texts, shown = _shown_messages(row, field, value, row_format.images, placeholder)
    messages = [
        {**one, "content": text.get("content")}
        for one, text in zip(asked.messages, texts, strict=False)
    ]
    if choices is not None:
        last = max(at for at, one in enumerate(messages) if one["role"] == "user")
        messages[last]["content"] += _lines(choices)
    asked = asked._replace(messages=messages)
    return asked.text, asked, [image for images in shown[:end] for image in images]


def _asked_field(row: DataRow, row_format: RowFormat) -> tuple[str, Any]:
    """Returns the field of the question, and its value.

    Where pairs are whole conversations, their beginning is the question, unless the row has its
    messages.
    """
    assert row_format.prompt is not None, "there is no template"
    value = _lookup(row, row_format.prompt)
    for field in (row_format.chosen, row_format.rejected):
        whole: Any = None if field is None else _lookup(row, field)
        if field is not None and not is_messages(value) and _is_whole(whole):
            before = list(whole or ())[:-1]
            if value is _MISSING or [one["role"] for one in before] != ["user"]:
                return field, before
    return row_format.prompt, value


def _end_of_question(row: DataRow, row_format: RowFormat, messages: Messages) -> int:
    """Returns the number of messages before the answer, if the same list also holds the answer.

    A list that is demonstrated, and ends with a question, is asked as a whole.
    """

    def holds(field: str | None) -> bool:
        return field is not None and _lookup(row, field) == messages

    replies = [at for at, one in enumerate(messages) if one["role"] == "assistant"]
    is_said = bool(replies) and replies[-1] == len(messages) - 1
    if replies and (holds(row_format.answer) or (is_said and holds(row_format.demonstration))):
        return replies[-1]
    return len(messages)


def _lines(choices: Choices | None) -> str:
    return "" if choices is None else f"\n{choices.lines()}"


def _images(row: DataRow, field: str | None, in_parts: Sequence[object]) -> list[Image]:
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
    value = None if field is None else _lookup(row, field)
    if value is _MISSING or value is None or (isinstance(value, str) and not value):
        value = []
    values = value if isinstance(value, list | tuple) else [value]
    return [(f"{field!r} [{number}]", one) for number, one in enumerate(values)]


def _image(row: DataRow, name: str, value: object) -> Image:
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


def _only_reply(row: DataRow, field: str) -> str | None:
    """Returns the only reply in messages that are demonstrated as the problem itself.

    It returns None if the field is no such list.
    """
    messages = _lookup(row, field)
    if not is_messages(messages) or not (_shows(messages) or _is_completion(messages)):
        return None
    return _last_reply(row, field, messages)


def _is_completion(messages: Messages) -> bool:
    """Says whether messages are one text of the assistant, which completes the prompt."""
    return [one["role"] for one in messages] == ["assistant"] and not messages[0].get("tool_calls")


def _is_whole(value: Any) -> bool:
    """Says whether a completion is given as a whole conversation."""
    return is_messages(value) and value[0]["role"] != "assistant"


def _shows(messages: Messages) -> bool:
    return any(has_images(one.get("content")) for one in messages)


def _dialogue(row: DataRow, row_format: RowFormat, placeholder: str) -> Dialogue | None:
    """Returns the conversation that is a row's demonstration, if there is one.

    One question about images with one answer is no conversation: its problem is demonstrated.
    """
    field = row_format.demonstration
    messages: Any = _MISSING if field is None else _lookup(row, field)
    if field is None or not is_messages(messages):
        return None
    roles = [one["role"] for one in messages if one["role"] != "system"]
    if _is_completion(messages) or (_shows(messages) and roles == ["user", "assistant"]):
        return None
    if messages[0]["role"] == "assistant" and row_format.prompt is not None:
        asked = _lookup(row, row_format.prompt)
        before = asked if is_messages(asked) else [{"role": "user", "content": asked}]
        messages = [*({**one, "weight": 0} for one in before), *messages]
    tools = None if row_format.tools is None else _lookup(row, row_format.tools)
    texts, shown = _shown_messages(row, field, messages, row_format.images, placeholder)
    try:
        dialogue = dialogue_of(texts, None if tools is _MISSING else tools)
    except ValueError as error:
        raise _refusal(row, field, str(error)) from error
    lines = zip(dialogue.lines, shown, strict=False)  # What follows the last reply is left out.
    return dialogue._replace(lines=tuple(line._replace(images=images) for line, images in lines))


def _shown_messages(
    row: DataRow,
    field: str,
    messages: Messages,
    images_field: str | None,
    placeholder: str,
) -> tuple[list[dict[str, Any]], list[tuple[Image, ...]]]:
    """Returns messages with texts as contents, and the images of each."""
    of_field = _of_field(row, images_field)
    try:
        contents = shown_contents(messages, placeholder, len(of_field), images_field)
        texts = [
            {**one, "content": content_of(one) if content is None else content.text}
            for one, content in zip(messages, contents, strict=True)
        ]
    except ValueError as error:
        raise _refusal(row, field, str(error)) from error
    rest = iter(of_field)
    shown = [
        tuple(
            _image(
                row,
                *(
                    next(rest)
                    if value is None
                    else (f"{_named(row, field)} message {number}", value)
                ),
            )
            for value in (() if content is None else content.images)
        )
        for number, content in enumerate(contents, start=1)
    ]
    return texts, shown


def _unanswered(row: DataRow, field: str | None) -> str:
    """Returns a complaint if the field of the answer is missing or empty, or an empty text."""
    if field is None:
        return ""
    value = _lookup(row, field)
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
    value = without_padding(_lookup(row, field))
    if is_messages(value):
        text = _last_reply(row, field, value)
    elif value is False or (value and isinstance(value, bool | list | Mapping)):
        text = answer_text(value)
        if not text.strip():
            raise _not_text(row, field, value)
    else:
        text = _text(row, field)
    if row_format.answer_pattern is not None:
        text = _last_match(row_format.answer_pattern, text)
        if not text:
            there = _shown(_value(row, field))
            raise _refusal(
                row,
                field,
                f"is {there}, which has no {row_format.answer_pattern}. Change"
                f" {SECTION}.answer_pattern; if it is empty, the whole field is the answer.",
            )
    return text if choices is None else _letter(row, field, choices, text)


def _has_several_answers(value: Any) -> bool:
    """Says whether an answer has lists of accepted spellings, and is thus no text to imitate."""
    parts = value.values() if isinstance(value, Mapping) else value
    return isinstance(value, list | Mapping) and any(isinstance(one, list) for one in parts)


def _last_reply(row: DataRow, field: str, messages: Messages) -> str:
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
    chosen, rejected = row_format.chosen, row_format.rejected
    whole = [_lookup(row, field) for field in (chosen, rejected)]
    if all(map(_is_whole, whole)) and whole[0][:-1] != whole[1][:-1]:
        raise _refusal(
            row, rejected, f"differs from {chosen!r} before its last message: a pair has one prompt"
        )
    return _reply(row, chosen), _reply(row, rejected), float(margin)


def _reply(row: DataRow, field: str) -> str:
    """Returns a completion: a text, the only message of a list, or a conversation's last one."""
    value = _value(row, field)
    if not is_messages(value):
        return _text(row, field)
    last = value[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        raise _refusal(
            row, field, f"ends with {_shown(last)}; it must end with an assistant's text"
        )
    if not _is_whole(value) and len(value) > 1:
        raise _refusal(
            row, field, f"has {len(value)} messages; a pair compares one reply to the same prompt"
        )
    try:
        return content_of(last)
    except ValueError as error:
        raise _refusal(row, field, str(error)) from error


def _last_match(pattern: str, text: str) -> str:
    """Returns the last match's last group, or the match if it has no groups, or an empty text."""
    matches = list(re.finditer(pattern, text))
    return (matches[-1][matches[-1].lastindex or 0] or "").strip() if matches else ""


def _letter(row: DataRow, field: str, choices: Choices, answer: object) -> str:
    try:
        return choices.letter(answer)
    except ValueError as error:
        raise _OtherFieldError(*_told(row, field, str(error))) from error


def _filled(row: DataRow, row_format: RowFormat, choices: Choices | None) -> str:
    """Returns the template with the row's fields, whose names are paths.

    An empty field takes the white space before it along.
    """
    options = "" if row_format.choices is None else row_format.choices
    names_of_options = {options, *options.split("|")} - {""}
    shows_options = not names_of_options.isdisjoint(row_format.template_fields)
    text, empty, is_filled = "", list[tuple[str, Any]](), False
    for literal, field, _, _ in string.Formatter().parse(row_format.template or ""):
        if field is None:
            text += literal
            continue
        if choices is not None and field in names_of_options:
            text, is_filled = text + literal + choices.lines(), True
            continue
        behind = ""
        if not field:
            field = row_format.prompt or ""
            behind = "" if shows_options else _lines(choices)
        value = _lookup(row, field) if field.endswith("|") else _value(row, field)
        if is_messages(value):
            raise _refusal(
                row,
                field,
                f"is a list of messages, which {SECTION}.template does not change: leave the"
                " template empty to ask the messages as they are.",
            )
        if value in (_MISSING, None, "") or (isinstance(value, str) and not value.strip()):
            text += literal.rstrip()
            empty.append((field, value))
        else:
            text, is_filled = text + literal + _text(row, field, lines=True) + behind, True
    if not is_filled:
        field, value = empty[0]
        raise _missing(row, field) if value is _MISSING else _not_text(row, field, value)
    return text


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
    value = _lookup(row, field)
    if value is _MISSING:
        raise _missing(row, field)
    return value


def _lookup(row: DataRow, field: str) -> Any:
    """Returns the first existing value among the paths of `a.b|c`, or `_MISSING`.

    Nulls with which a table pads objects are left out. Messages of ShareGPT's form are returned in
    OpenAI's.
    """
    values = [_at(row.fields, path) for path in field.split("|") if path]
    # In a data set, a field that a row lacks and other rows have is null.
    given = [value for value in values if value is not _MISSING and value is not None]
    if not given:
        return None if None in values else _MISSING
    value = _without_nulls(given[0]) if row.is_padded else given[0]
    if not is_share_gpt(value):
        return value
    try:
        return messages_of_share_gpt(value, row.fields.get("system"))
    except ValueError as error:
        raise _refusal(row, field, str(error)) from error


def _without_nulls(value: object) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


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
    complaint = f"is missing; it must be text that is not empty. The row has {there}."
    return _OtherFieldError(*_told(row, field, complaint))


def _not_text(row: DataRow, field: str, value: object) -> ValueError:
    complaint = f"is {_shown(value)}; it must be text that is not empty."
    return _OtherFieldError(*_told(row, field, complaint))


def _refusal(row: DataRow, field: str, complaint: str) -> ValueError:
    return ValueError(_told(row, field, complaint)[0])


def _told(row: DataRow, field: str, complaint: str) -> tuple[str, str]:
    return f"{row.where}: {_named(row, field)} {complaint}", field


def _named(row: DataRow, field: str) -> str:
    """Names the field that a row has of `a|b`, or else all of them."""
    paths = [path for path in field.split("|") if path]
    found = [path for path in paths if _at(row.fields, path) not in (_MISSING, None)]
    return repr(found[0]) if found else " or ".join(map(repr, paths))


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else reprlib.repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"…{text[-_SHOWN_CHARACTERS:]}"
