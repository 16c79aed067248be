"""Reads multi-turn demonstrations: conversations with tools, as in chat data sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rl_sync.images import Image
from rl_sync.tasks.pictures.placed_images import PlacedImages
from rl_sync.tasks.pictures.places import PLACE, has_images, text_and_images
from rl_sync.tasks.pictures.tile_processor import TileProcessor
from rl_sync.tasks.tokenizers.prompt_messages import PromptMessages
from rl_sync.tasks.tokenizers.tokenizer import Messages, Tokenizer

_CALL_ROLE = "function_call"
_SHARE_GPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    _CALL_ROLE: "assistant",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
}
"""The role in chat templates, by the name in `from`."""

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


class DialogueCall(NamedTuple):
    """A tool call in an assistant's message; see `ToolCall` of environments."""

    name: str
    arguments: Mapping[str, Any]
    call_id: str | None


class DialogueMessage(NamedTuple):
    """A message of a dialogue.

    Attributes:
      role, content, name, tool_call_id, images: see `Message` of environments.
      calls: tool calls in an assistant's message.
      is_learned: whether an assistant's message is trained on.
    """

    role: str
    content: str
    calls: tuple[DialogueCall, ...] = ()
    name: str | None = None
    tool_call_id: str | None = None
    is_learned: bool = True
    images: tuple[Image, ...] = ()


class Dialogue(NamedTuple):
    """A conversation whose assistant is the demonstration.

    Attributes:
      lines: messages.
      tools: schemas of the tools that the assistant sees.
    """

    lines: tuple[DialogueMessage, ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def texts(self) -> list[str]:
        """Returns the contents of all messages, without the places of images."""
        return [
            line.content.replace(PLACE, "") if line.images else line.content for line in self.lines
        ]

    @property
    def images(self) -> tuple[Image, ...]:
        """The images of all messages, in order."""
        return tuple(image for line in self.lines for image in line.images)


class Spoken(NamedTuple):
    """A dialogue of a training problem; `prompt_id` is the id of the problem."""

    prompt_id: int
    dialogue: Dialogue


class Demonstrated(NamedTuple):
    """A demonstration as tokens, in one sequence that attends only to itself.

    Attributes:
      tokens: token ids.
      mask: true at the tokens to train on, including each reply's end of sequence.
      images: images of the tokens; None for text alone.
    """

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]
    images: PlacedImages | None = None

    def cut(self, most_tokens: int) -> Demonstrated | None:
        """Returns the beginning, up to the last reply that ends within `most_tokens` tokens.

        It returns None if no reply ends there.
        """
        ends = [
            at + 1
            for at, learned in enumerate(self.mask)
            if learned and not (at + 1 < len(self.mask) and self.mask[at + 1])
        ]
        fitting = [end for end in ends if end <= most_tokens]
        if not fitting:
            return None
        images = None if self.images is None else self.images.until(fitting[-1])
        return Demonstrated(self.tokens[: fitting[-1]], self.mask[: fitting[-1]], images)


Rendering = Callable[[Tokenizer, Dialogue, TileProcessor | None], list[Demonstrated]]
"""A function that writes a dialogue in a tokenizer's chat template, with its images if there is a
processor of images. It returns several sequences if the template rewrites earlier messages. It
raises ValueError if it cannot write the dialogue."""


def is_messages(value: object) -> bool:
    """Says whether a field of a row is a list of messages."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, Mapping) and "role" in one for one in value)
    )


def is_share_gpt(value: object) -> bool:
    """Says whether a field of a row is a list of messages in the form of ShareGPT."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, Mapping) and {"from", "value"} <= set(one) for one in value)
    )


def messages_of_share_gpt(
    turns: Sequence[Mapping[str, Any]], system: object = None
) -> list[dict[str, Any]]:
    """Returns messages of ShareGPT's form, `{"from": "human", "value": …}`, in OpenAI's form.

    A `function_call` is an assistant's message whose value is the JSON of its calls. Other fields
    of a message, such as `weight`, are kept.

    Args:
      turns: messages.
      system: the system message, if the row has it in a field of its own and not in the list.

    Raises:
      ValueError: `from` names no role, or a call has another form.
    """
    messages = []
    for number, turn in enumerate(turns, start=1):
        said = turn["from"]
        role = _SHARE_GPT_ROLES.get(said.strip().lower()) if isinstance(said, str) else None
        if role is None:
            raise ValueError(
                f"message {number} is from {said!r}, which must be one of"
                f" {', '.join(_SHARE_GPT_ROLES)}"
            )
        message = {name: one for name, one in turn.items() if name not in ("from", "value")}
        message |= {"role": role, "content": turn["value"]}
        if said.strip().lower() == _CALL_ROLE:
            try:
                calls = _parsed(turn["value"])
            except ValueError as error:
                raise ValueError(f"message {number} {error}") from error
            listed = calls if isinstance(calls, list) else [calls]
            message |= {"content": "", "tool_calls": [{"function": one} for one in listed]}
        messages.append(message)
    if isinstance(system, str) and system.strip() and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return messages


def last_reply(messages: Messages) -> str:
    """Returns the text of the last assistant message, or an empty text."""
    replies = [content_of(one) for one in messages if one["role"] == "assistant"]
    return replies[-1].strip() if replies else ""


def dialogue_of(messages: Messages, tools: object = None) -> Dialogue:
    """Reads a dialogue.

    Args:
      messages: messages of a row, in the form of OpenAI and of chat templates: `role`, `content` (a
        text, a list of parts with texts, or null), `tool_calls`, `name`, `tool_call_id`, and
        `weight`, which is 0 for replies that are not trained on. The arguments of a call are an
        object or its JSON. Other fields are ignored.
      tools: a list of schemas, its JSON, or None.

      Raises:
        ValueError: a message or a tool has another form, or there is no reply to train on.
    """
    lines = []
    for number, message in enumerate(messages, start=1):
        try:
            lines.append(_line(message))
        except ValueError as error:
            raise ValueError(f"message {number} {error}") from error
    replies = [at for at, line in enumerate(lines) if line.role == "assistant" and line.is_learned]
    if not replies:
        raise ValueError("has no message of the assistant to imitate")
    if lines[0].role == "assistant":
        raise ValueError("begins with the assistant: a system's or a user's message comes first")
    return Dialogue(tuple(_with_ids(lines[: replies[-1] + 1])), _tools(tools))


def prompt_of(messages: Messages, tools: object = None) -> PromptMessages:
    """Reads a conversation that the policy answers, or whose last reply it continues.

    Args:
      messages, tools: as for `dialogue_of`. Other fields of a message, such as `reasoning_content`,
        are for the chat template.

    Raises:
      ValueError: a message or a tool has another form, nobody asks anything, or the last message
        calls tools, whose answers are missing.
    """
    kept = []
    for number, message in enumerate(messages, start=1):
        given = {name: value for name, value in message.items() if name not in _THOUGHTS}
        if has_images(given.get("content")):
            given["content"] = text_and_images(given["content"])[0]
        try:
            line = _line(given)
        except ValueError as error:
            raise ValueError(f"message {number} {error}") from error
        filled = {name: value for name, value in message.items() if value is not None}
        kept.append({**filled, "content": line.content} if "content" in message else filled)
    asks = (one for one in kept if one["role"] not in ("system", "assistant"))
    if not any((one.get("content") or "").strip() for one in asks):
        raise ValueError("has no message of a user with text or an image, which would be asked")
    if kept[-1].get("tool_calls"):
        raise ValueError("ends with tool calls: their answers are missing")
    return PromptMessages(kept, _tools(tools))


def _line(message: Mapping[str, Any]) -> DialogueMessage:
    role = message["role"]
    if not isinstance(role, str) or not role:
        raise ValueError(f"has the role {role!r}, which must be a text such as user")
    if any(message.get(name) for name in _THOUGHTS):
        raise ValueError(
            f"has its thoughts apart ({', '.join(_THOUGHTS)}): write them into the content, as the"
            " model is to write them"
        )
    weight = message.get("weight", 1)
    calls = message.get("tool_calls") or ()
    if calls and role != "assistant":
        raise ValueError(f"has tool_calls, and its role is {role!r}, not assistant")
    if not isinstance(calls, list | tuple):
        raise ValueError(f"has tool_calls={calls!r}, which must be a list")
    return DialogueMessage(
        role=role,
        content=content_of(message),
        calls=tuple(map(_call, calls)),
        name=message.get("name") or None,
        tool_call_id=message.get("tool_call_id") or None,
        is_learned=weight is None or bool(weight),
    )


def content_of(message: Mapping[str, Any]) -> str:
    """Returns the text of a message.

    Raises:
      ValueError: its content is neither a text nor a list of parts with texts.
    """
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError(f"has the content {content!r}, which must be text, or parts with a text")
    return content


def _call(call: Any) -> DialogueCall:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(
            f"has the tool call {call!r}, which must be"
            ' {"function": {"name": …, "arguments": {…}}}'
        )
    arguments = _parsed(function.get("arguments")) or {}
    if not isinstance(arguments, Mapping):
        raise ValueError(f"calls {function['name']} with {arguments!r}, which must be an object")
    return DialogueCall(function["name"], arguments, call.get("id") or None)


def _tools(tools: object) -> tuple[Mapping[str, Any], ...]:
    found = _parsed(tools) or []
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise ValueError(
            f"has the tools {tools!r}, which must be a list of JSON schemas, or its JSON"
        )
    return tuple(
        one if "function" in one else {"type": "function", "function": one} for one in found
    )


def _parsed(value: object) -> Any:
    """Parses a JSON text, or returns another value."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"has {value[:80]!r}, which is not JSON ({error})") from error


def _with_ids(lines: Sequence[DialogueMessage]) -> list[DialogueMessage]:
    """Gives calls without an id, and their answers, new ids in order.

    The ids have the same form as in episodes.
    """
    named, count, open_calls = [], 0, list[DialogueCall]()
    for line in lines:
        calls = []
        for call in line.calls:
            calls.append(call._replace(call_id=call.call_id or f"call{count:05d}"))
            count += 1
        if line.role == "tool":
            answered = open_calls.pop(0) if open_calls else None
            if answered is not None and line.tool_call_id is None:
                line = line._replace(tool_call_id=answered.call_id, name=line.name or answered.name)
        else:
            open_calls = list(calls)
        named.append(line._replace(calls=tuple(calls)))
    return named
