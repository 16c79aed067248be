"""Writes conversations in chat templates: with a run's own arguments, and its date."""

from __future__ import annotations

import datetime
import functools
import itertools
import json
from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rl_sync.tasks.tokenizers.tokenizer import Messages, Schemas

_NONE: Mapping[str, Any] = MappingProxyType({})
_OWN = frozenset(
    {
        "messages",
        "conversation",
        "tools",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "return_dict",
        "return_tensors",
        "return_assistant_tokens_mask",
        "padding",
        "truncation",
        "max_length",
        "tokenizer_kwargs",
        "date_parts",
    }
)
"""Arguments that rl_sync gives itself, or that do not belong to a template."""

# Templates ask for today's date by the function strftime_now. This macro takes its place. It
# writes the directives of a format one after the other; the two percent signs come last.
_DATED = (
    "{% macro strftime_now(format) %}{% set ns = namespace(text=format) %}"
    "{% for code, part in date_parts %}{% set ns.text = ns.text.replace(code, part) %}"
    "{% endfor %}{{ ns.text }}{% endmacro %}\n"
)
_DIRECTIVES = "aAbBdmyYjUWuVGxcDFeCHIMSpfTRXZz"


def arguments_of(given: str | None) -> Mapping[str, Any]:
    """Reads `tokenizer.template_arguments`.

    Raises:
      ValueError: it is no JSON object, or it names an argument that is not the template's.
    """
    if given is None or not given.strip():
        return _NONE
    try:
        values = json.loads(given)
    except ValueError as error:
        raise ValueError(
            f"tokenizer.template_arguments={given!r} is not JSON ({error}): give an object, such as"
            ' {"enable_thinking": false}.'
        ) from error
    if not isinstance(values, dict):
        raise ValueError(
            f"tokenizer.template_arguments={given!r} must be a JSON object, such as"
            ' {"enable_thinking": false}.'
        )
    if wrong := sorted(_OWN & values.keys()):
        raise ValueError(
            f"tokenizer.template_arguments names {wrong[0]!r}, which a run gives itself: leave it"
            " out."
        )
    return values


def day_of(given: str | None) -> datetime.date | None:
    """Reads `tokenizer.date`.

    Raises:
      ValueError: it is no date in the form YYYY-MM-DD.
    """
    if given is None:
        return None
    try:
        return datetime.date.fromisoformat(given)
    except ValueError as error:
        raise ValueError(
            f"tokenizer.date={given!r} must be a date such as 2026-03-31 ({error})."
        ) from error


def write_chat(
    backend: Any,
    messages: Messages,
    tools: Schemas = (),
    *,
    arguments: Mapping[str, Any] = _NONE,
    day: datetime.date | None = None,
    **way: bool,
) -> str:
    """Writes a conversation in the chat template of a `PreTrainedTokenizerBase`.

    Args:
      backend: the tokenizer.
      messages, tools: the conversation.
      arguments: values that the template reads.
      day: today's date for a template that asks for it, with midnight as the time; None for the
        present date and time.
      way: `add_generation_prompt` or `continue_final_message`.

    Raises:
      Exception: an error of Jinja, or of the template's own code.
    """
    named = list(tools) or None
    template = backend.get_chat_template(tools=named)
    if day is not None and "strftime_now" in template:
        arguments = {**arguments, "date_parts": _parts(day)}
        template = _DATED + template
    return backend.apply_chat_template(
        list(messages), tools=named, chat_template=template, tokenize=False, **arguments, **way
    )


def keeps(written: str, text: str) -> bool:
    """Says whether a template has written a whole text, perhaps with other white space."""
    return "".join(text.split()) in "".join(written.split())


def end_of_reply(behind: Sequence[int], ends: Sequence[int], special: Container[int]) -> int | None:
    """Returns the id that ends a reply in a chat template; None if there is none.

    The first special tokens behind the reply close it. The end is the first of `ends` among them,
    and otherwise the last of them: a tokenizer made for texts often names only the end of texts.

    Args:
      behind: ids of what the template writes behind the reply.
      ends: ids that the checkpoint's files name as ends.
      special: ids of special tokens.
    """
    runs = itertools.groupby(behind, lambda i: i in ends or i in special)
    closing = next((list(run) for is_closing, run in runs if is_closing), [])
    return next((i for i in closing if i in ends), closing[-1] if closing else None)


@functools.lru_cache(maxsize=8)
def _parts(day: datetime.date) -> list[tuple[str, str]]:
    """Returns directives of `strftime` with what they write for a day, at midnight."""
    at = datetime.datetime.combine(day, datetime.time())
    unpadded = {
        "%-d": day.day,
        "%-m": day.month,
        "%-H": 0,
        "%-I": 12,
        "%-j": at.timetuple().tm_yday,
    }
    known = [(code, str(number)) for code, number in unpadded.items()]
    return [*known, *((f"%{one}", at.strftime(f"%{one}")) for one in _DIRECTIVES), ("%%", "%")]
