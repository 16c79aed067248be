"""Tool calls in a reply's text, as the chat templates of model families write them.

A format is a function from a text to a `ParsedReply`, and a line in `CALL_FORMATS`. A call that
cannot be read raises no error: its message is for the policy.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rl_sync.environments.interface import Reply, ToolCall
from rl_sync.tasks.tokenizers.pretrained import PretrainedTokenizer
from rl_sync.tasks.tokenizers.tokenizer import Tokenizer, without_end
from rl_sync.thoughts import split

_SHOWN_CHARACTERS = 200
_UNREADABLE = "\ufffd"


class ParsedReply(NamedTuple):
    """The parts of a text.

    Attributes:
      content: the text without the calls that were read.
      calls: the calls that were read, in their order; those without an id of their own have None.
      malformed: the error in each call that could not be read.
    """

    content: str
    calls: tuple[ToolCall, ...] = ()
    malformed: tuple[str, ...] = ()


class CallFormat(NamedTuple):
    """A format of calls.

    Attributes:
      read: reads a text.
      mark: text that starts calls after other text.
      alone: text that starts a reply of only calls; empty if there is none.
      closing: text that ends a call; empty if there is none.
    """

    read: Callable[[str], ParsedReply]
    mark: str
    alone: str = ""
    closing: str = ""

    def before_calls(self, text: str) -> str:
        """Returns the beginning of a text that is content, however the text continues."""
        begun = text.lstrip()
        if self.alone and (not begun or begun.startswith(self.alone)):
            return ""
        content, mark, _ = text.partition(self.mark)
        if not mark:
            content = content[: len(content) - overlap(content, self.mark)]
        return content.rstrip("\n")  # White space before a call is not content.


def overlap(text: str, mark: str) -> int:
    """Returns the length of a text's longest suffix that is a proper prefix of a mark."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)


def read_tagged(text: str) -> ParsedReply:
    """Reads calls of Qwen 2.5 and 3: `<tool_call>{"name": …, "arguments": …}</tool_call>`."""
    content, *parts = text.split("<tool_call>")
    before, read = content, _Calls("arguments")
    for part in parts:
        body, closing, rest = part.partition("</tool_call>")
        if closing:
            is_read = read.add_text(body)
        else:
            is_read = read.refuse("it is not closed by </tool_call>", body)
        content += rest if is_read else f"<tool_call>{part}"
    return read.reading(content, before)


def read_headless(text: str) -> ParsedReply:
    """Reads calls of Llama 3: a reply of `{"name": …, "parameters": …}`, and nothing else.

    `<|python_tag|>` may precede it, after other text. Several calls are separated by `;`.
    Without the tag, an object that has no name and parameters is an ordinary answer.
    """
    content, tag, calls = text.partition("<|python_tag|>")
    calls = calls.strip() if tag else text.strip()
    read = _Calls("parameters")
    if not tag and not calls.startswith("{"):
        return ParsedReply(text)
    try:
        values = _joined_values(calls)
    except ValueError as error:
        is_meant = tag or calls.removeprefix("{").lstrip().startswith('"name"')
        if is_meant:
            read.refuse(f"it is not JSON ({error})", calls)
        return read.reading(text)
    if not tag and not all(
        isinstance(v, dict) and {"name", "parameters"} <= set(v) for v in values
    ):
        return ParsedReply(text)
    are_read = [read.add(value) for value in values]
    before = content if tag else ""
    return read.reading(before if any(are_read) else text, before)


def read_listed(text: str) -> ParsedReply:
    """Reads calls of Mistral: `[TOOL_CALLS][{"name": …, "arguments": …}, …]` behind other text."""
    content, tag, calls = text.partition("[TOOL_CALLS]")
    read = _Calls("arguments")
    if not tag:
        return ParsedReply(text)
    try:
        values = _value(calls)
    except ValueError as error:
        read.refuse(f"it is not JSON ({error})", calls)
        return read.reading(text)
    if not isinstance(values, list) or not values:
        read.refuse("it is not a list of calls", calls)
        return read.reading(text)
    are_read = [read.add(value) for value in values]
    return read.reading(content if any(are_read) else text, content)


CALL_FORMATS: dict[str, CallFormat] = {
    "qwen": CallFormat(read_tagged, "<tool_call>", closing="</tool_call>"),
    "llama": CallFormat(read_headless, "<|python_tag|>", alone="{"),
    "mistral": CallFormat(read_listed, "[TOOL_CALLS]"),
}


def call_format(tokenizer: Tokenizer, name: str = "auto") -> CallFormat | None:
    """Returns the format in which a policy writes tool calls.

    Args:
      tokenizer: the policy's tokenizer.
      name: one of `CALL_FORMATS`; `none` for no calls; or `auto` for the format of the chat
        template, and for no calls if there is no template or it has none of these formats.

    Raises:
      ValueError: the name is unknown.
    """
    if name in CALL_FORMATS:
        return CALL_FORMATS[name]
    if name not in ("auto", "none"):
        known = ", ".join(["auto", "none", *CALL_FORMATS])
        raise ValueError(f"The format of tool calls must be one of {known}, not {name!r}.")
    if name == "none" or not isinstance(tokenizer, PretrainedTokenizer) or not tokenizer.chat:
        return None
    template = tokenizer.template(has_tools=True)
    # Templates with `<function=` in their tags write XML.
    if "<tool_call>" in template and "<function=" not in template:
        return CALL_FORMATS["qwen"]
    if "[TOOL_CALLS]" in template:
        return CALL_FORMATS["mistral"]
    if "<|python_tag|>" in template or '"parameters"' in template:
        return CALL_FORMATS["llama"]
    return None


def read_reply(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    is_cut: bool,
    reads: CallFormat | None = None,
    calls_before: int = 0,
    begun: str = "",
) -> Reply:
    """Reads a reply from its ids.

    Args:
      tokenizer: the policy's tokenizer.
      ids: the drawn ids, with the one that ended the reply, if one did.
      is_cut: whether a limit ended the reply.
      reads: the format of tool calls; None if there are none.
      calls_before: the number of earlier calls in the conversation, from which calls are numbered.
      begun: what the prompt has written of the reply; see `rl_sync.thoughts.split`.

    Returns:
      The reply. Calls inside the policy's thoughts are text.
    """
    text = _text(tokenizer, ids, reads)
    found = split(text, begun, tokenizer.thoughts, calls=reads.mark if reads else "")
    if reads is None or found.is_thinking:
        return Reply(text, is_cut=is_cut, begun=begun, spoken=found.answer)
    content, calls, malformed = reads.read(text[found.end :])
    # Mistral's templates accept only ids of nine letters and digits.
    named = tuple(
        dataclasses.replace(call, call_id=call.call_id or f"call{calls_before + number:05d}")
        for number, call in enumerate(calls)
    )
    return Reply(
        text=text,
        tool_calls=named,
        malformed=malformed,
        is_cut=is_cut,
        content=text[: found.end] + content if calls else None,
        begun=begun,
        spoken=found.answer,
    )


def read_beginning(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    reads: CallFormat | None = None,
    begun: str = "",
) -> str:
    """Reads the beginning of a reply's content while the reply is still being drawn.

    Args:
      tokenizer, ids, reads, begun: see `read_reply`.

    Returns:
      The content as far as it is certain. It excludes characters with missing bytes, and text that
      may be the start of a tool call.
    """
    text = _text(tokenizer, ids, reads).rstrip(_UNREADABLE)
    if reads is None:
        return text
    found = split(text, begun, tokenizer.thoughts, calls=reads.mark)
    if found.is_thinking:
        return text
    return text[: found.end] + reads.before_calls(text[found.end :])


def _text(tokenizer: Tokenizer, ids: Sequence[int], reads: CallFormat | None) -> str:
    """Decodes a reply without the token that ends it, unless this one ends a call."""
    said = [int(i) for i in without_end(tokenizer, ids)]
    end = tokenizer.decode_all([int(i) for i in ids[len(said) :]])
    text = tokenizer.decode_all(said)
    return text + end if reads and end and end == reads.closing else text


class _Calls:
    """The calls found so far; `arguments` is the name that the format gives to arguments."""

    def __init__(self, arguments: str) -> None:
        self._arguments = arguments
        self._calls: list[ToolCall] = []
        self._malformed: list[str] = []

    def add_text(self, text: str) -> bool:
        """Adds a call from its JSON, and says if it could be read."""
        try:
            value = _value(text)
        except ValueError as error:
            return self.refuse(f"it is not JSON ({error})", text)
        return self.add(value)

    def add(self, value: object) -> bool:
        """Adds a call from its object, and says if it could be read."""
        if not isinstance(value, dict):
            return self.refuse("it is not an object", json.dumps(value))
        name, arguments = value.get("name"), value.get(self._arguments)
        if not isinstance(name, str) or not name:
            return self.refuse('it has no "name"', json.dumps(value))
        if not isinstance(arguments, dict):
            return self.refuse(f'its "{self._arguments}" are not an object', json.dumps(value))
        own_id = value.get("id")
        call_id = own_id if isinstance(own_id, str) and own_id else None
        self._calls.append(ToolCall(name, arguments, call_id))
        return True

    def refuse(self, reason: str, text: str) -> bool:
        """Records a call that cannot be read; returns False."""
        text = text.strip()
        shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
        self._malformed.append(
            f"Malformed tool call: {reason}. Write an object with"
            f' "name" and "{self._arguments}" instead of {shown}'
        )
        return False

    def reading(self, content: str, before: str = "") -> ParsedReply:
        """Returns the parsed reply; white space around calls is not content.

        Args:
          before: the text before the first call.
        """
        if self._calls:
            content = content.rstrip("\n")
            content = content if before.strip("\n") else content.lstrip("\n")
        return ParsedReply(content, tuple(self._calls), tuple(self._malformed))


def _value(text: str) -> Any:
    """Parses JSON. Raises ValueError, also for text that no encoding has."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    # An escaped half of a surrogate pair is legal JSON, but cannot be encoded as text.
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _joined_values(text: str) -> list[Any]:
    """Parses JSON values that are parted by `;`. Raises ValueError."""
    values = []
    decoder = json.JSONDecoder()
    while text:
        try:
            _, stop = decoder.raw_decode(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        values.append(_value(text[:stop]))
        text = text[stop:].strip()
        if text and not text.startswith(";"):
            raise ValueError(f"text follows: {text[:_SHOWN_CHARACTERS]!r}")
        text = text.removeprefix(";").lstrip()
    if not values:
        raise ValueError("there is nothing")
    return values
