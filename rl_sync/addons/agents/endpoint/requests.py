"""Requests for chat completions, from the JSON that clients of OpenAI send."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rl_sync.addons.agents.endpoint.reasoning import Parted, Reasoning
from rl_sync.addons.agents.endpoint.refusals import refuse
from rl_sync.environments.interface import Message, ToolCall, ToolSchema
from rl_sync.images import Image

_LENGTHS = ("max_completion_tokens", "max_tokens")
_HEEDED = {"model", "messages", "tools", "stop", "n", "stream", "stream_options", "logprobs"}
_HEEDED |= set(_LENGTHS)
_DEFAULT = Reasoning()
_REASONING = ("reasoning_content", "reasoning")
_OUTDATED = {"functions": "use 'tools'", "function_call": "use 'tools'"}
# Templates know only the older name of the role.
_ROLES = {"developer": "system"}
_IMAGE_TYPES = ("image_url", "input_image")
_SHOWN_CHARACTERS = 200
_MOST_CHOICES = 128
_MOST_LEVELS = 100
"""Maximum nesting of lists and objects: deeper ones would exceed Python's stack later on."""


@dataclasses.dataclass(frozen=True)
class ChatRequest:
    """A request for the policy's reply to a conversation.

    Attributes:
      messages: the whole conversation.
      tools: schemas of the tools that may be called.
      stop: texts that end the reply, and are no part of it.
      most_tokens: maximum number of tokens of the reply; None for the maximum of the run.
      n: the number of replies, each of which is a turn of the episode.
      stream: whether the reply is sent as events.
      stream_usage: whether the last event counts the tokens.
      logprobs: whether the reply has its log-probabilities.
      reasoning: form of the reasoning of replies.
      ignored: names of fields that change nothing, since the run decides how replies are sampled.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    stop: tuple[str, ...] = ()
    most_tokens: int | None = None
    n: int = 1
    stream: bool = False
    stream_usage: bool = False
    logprobs: bool = False
    reasoning: Reasoning = _DEFAULT
    ignored: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Posted:
    """The outcome that an agent posts; see `Outcome`."""

    rewards: Mapping[str, float]
    metrics: Mapping[str, float]


def read_chat(data: bytes, reasoning: Reasoning = _DEFAULT) -> ChatRequest:
    """Reads a request for a chat completion.

    Args:
      data: the body.
      reasoning: see `ChatRequest`.

    Raises:
      RefusalError: the body is no such request, or asks for what the policy cannot do; with
        status 400.
    """
    body = read_object(data)
    require_served(body, _OUTDATED)
    count = 1 if body.get("n") is None else body["n"]
    if type(count) is not int or not 1 <= count <= _MOST_CHOICES:
        raise refuse(f"n must be an integer from 1 to {_MOST_CHOICES}, not {shown(count)}.", "n")
    options = body.get("stream_options")
    return ChatRequest(
        messages=tuple(
            read_message(one, f"messages[{i}]", reasoning)
            for i, one in enumerate(read_conversation(body))
        ),
        tools=tuple(
            read_tool(one, f"tools[{i}]") for i, one in enumerate(read_list(body, "tools"))
        ),
        stop=read_stop(body.get("stop")),
        most_tokens=read_length(body, _LENGTHS),
        n=count,
        stream=read_flag(body, "stream"),
        stream_usage=isinstance(options, dict) and options.get("include_usage") is True,
        logprobs=read_flag(body, "logprobs"),
        reasoning=reasoning,
        ignored=ignored(body, _HEEDED),
    )


def read_outcome(data: bytes) -> Posted:
    """Reads `{"rewards": {name: number}, "metrics": {name: number}}`.

    Raises:
      RefusalError: the body is something else, or has no reward; with status 400.
    """
    body = read_object(data)
    if unknown := sorted(set(body) - {"rewards", "metrics"}):
        raise refuse(f"An outcome has rewards and metrics, and no {unknown[0]!r}.", unknown[0])
    rewards, metrics = _numbers(body, "rewards"), _numbers(body, "metrics")
    if not rewards:
        raise refuse('rewards must name at least one reward, as in {"solved": 1.0}.', "rewards")
    return Posted(rewards, metrics)


def read_conversation(body: Mapping[str, Any]) -> list[Any]:
    """Reads the list of messages, of which none is read yet."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise refuse("messages must be a list with at least one message.", "messages")
    return messages


def require_served(body: Mapping[str, Any], instead: Mapping[str, str]) -> None:
    """Refuses fields that ask for what is not done here; `instead` says what to do."""
    for name, way_out in instead.items():
        if body.get(name) not in (None, []):
            raise refuse(f"{name!r} is not served here: {way_out}.", name)


def ignored(body: Mapping[str, Any], heeded: Collection[str]) -> tuple[str, ...]:
    """Names the fields of a request that change nothing."""
    return tuple(sorted(name for name in body if name not in heeded and body[name] is not None))


def read_object(data: bytes) -> dict[str, Any]:
    """Reads a body that must be an object of JSON."""
    try:
        body = _loaded(data)
        # An escaped half of a surrogate pair is legal JSON, but cannot be encoded as text.
        json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise refuse(f"The body cannot be read as JSON: {error}.") from error
    if not isinstance(body, dict):
        raise refuse(f"The body must be a JSON object, not {shown(body)}.")
    return body


def _loaded(text: str | bytes) -> Any:
    """Loads JSON.

    Raises:
      ValueError: it is not JSON, or has too many levels.
      RecursionError: it has very many levels.
    """
    value = json.loads(text)
    level: list[Any] = [[value]]
    for _ in range(_MOST_LEVELS + 1):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for items in inner for one in items if isinstance(one, dict | list)]
        if not level:
            return value
    raise ValueError(f"it has more than {_MOST_LEVELS} levels")


def read_message(value: Any, place: str, reasoning: Reasoning = _DEFAULT) -> Message:
    """Reads a message; `place` is where it stands in the request."""
    role = value.get("role") if isinstance(value, dict) else None
    if not isinstance(role, str) or not role:
        raise refuse(f"{place} must be an object with a role, not {shown(value)}.", place)
    is_reply = role == "assistant"
    content: Any = value.get("content")
    content = (
        read_content(content, place, may_lack=True) if is_reply else read_shown(content, place)
    )
    if is_reply:
        content = reasoning.joined(Parted(_reasoning(value), content))
    calls = read_list(value, "tool_calls", f"{place}.") if is_reply else []
    name, call_id = value.get("name"), value.get("tool_call_id")
    return Message(
        role=_ROLES.get(role, role),
        content=content,
        tool_calls=tuple(
            read_call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(calls)
        ),
        # Some agents name themselves in replies, which the policy has not written.
        name=name if isinstance(name, str) and not is_reply else None,
        tool_call_id=call_id if isinstance(call_id, str) else None,
    )


def _reasoning(value: Mapping[str, Any]) -> str:
    """Returns the reasoning of an assistant's message; clients name the field differently."""
    found = [value[name] for name in _REASONING if isinstance(value.get(name), str)]
    return next((text for text in found if text.strip()), "").strip("\n")


def read_content(value: object, place: str, may_lack: bool = False) -> str:
    """Reads a content: a text, or parts of text."""
    if isinstance(value, str):
        return value
    if value is None and may_lack:
        return ""
    if not isinstance(value, list):
        raise refuse(f"{place}.content must be a text, not {shown(value)}.", place)
    for part in value:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise refuse(
                f"{place}.content may have parts of text alone, not {shown(part)}: policies write"
                " no images and no sounds.",
                place,
            )
    return "".join(part["text"] for part in value)


def read_shown(value: object, place: str) -> str | list[str | Image]:
    """Reads a content that the policy is shown: a text, or parts of text and images."""
    if not (isinstance(value, list) and any(map(_is_image, value))):
        return read_content(value, place)
    return [
        _read_image(part, f"{place}.content[{number}]", place)
        if _is_image(part)
        else read_content([part], place)
        for number, part in enumerate(value)
    ]


def _is_image(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in _IMAGE_TYPES


def _read_image(part: Mapping[str, Any], place: str, field: str) -> Image:
    """Reads a part with an image, which must be in the request: nothing is fetched or opened."""
    url = part.get("image_url")
    url = url.get("url") if isinstance(url, dict) else url
    if not isinstance(url, str) or url[:5].lower() != "data:":
        raise refuse(
            f"{place} must have its image as a data URL (data:image/png;base64,…), not"
            f" {shown(part)}: nothing is fetched.",
            field,
        )
    try:
        image = Image.of(url)
        image.size()
    except ValueError as error:
        raise refuse(f"{place}: {error}", field) from error
    return image


def read_call(value: Any, place: str) -> ToolCall:
    """Reads a call of a tool."""
    function = value.get("function") if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str):
        raise refuse(f"{place} must call a function by its name, not {shown(value)}.", place)
    call_id = value.get("id")
    arguments = read_arguments(function.get("arguments"), f"{place}.function.arguments", place)
    return ToolCall(name, arguments, call_id if isinstance(call_id, str) else None)


def read_arguments(written: object, place: str, field: str) -> dict[str, Any]:
    """Reads the arguments of a call, which are JSON in a text; errors name the field."""
    try:
        arguments = _loaded(written) if isinstance(written, str) else None
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise refuse(f"{place} must be an object of JSON in a text, not {shown(written)}.", field)
    return arguments


def read_tool(value: Any, place: str) -> ToolSchema:
    """Reads the schema of a tool."""
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise refuse(f"{place} must be the JSON schema of a function.", place)
    return value


def read_list(body: Mapping[str, Any], name: str, where: str = "") -> list[Any]:
    """Reads a list in a field that may be missing; `where` is the path before the field's name."""
    values = body.get(name) or []
    if not isinstance(values, list):
        raise refuse(f"{where}{name} must be a list, not {shown(values)}.", f"{where}{name}")
    return values


def read_stop(value: object, name: str = "stop") -> tuple[str, ...]:
    """Reads texts that end a reply, from the field `name`."""
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(one, str) and one for one in texts):
        raise refuse(f"{name} must be a text or a list of texts, not {shown(value)}.", name)
    return tuple(texts)


def read_length(body: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """Reads the maximum number of tokens of a reply from the first field that is present."""
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise refuse(f"{name} must be an integer of at least 1, not {shown(value)}.", name)
        return value
    return None


def read_flag(body: Mapping[str, Any], name: str) -> bool:
    """Reads a field that is true or false."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise refuse(f"{name} must be true or false, not {shown(value)}.", name)
    return bool(value)


def _numbers(body: Mapping[str, Any], name: str) -> dict[str, float]:
    values = body.get(name, {})
    if not isinstance(values, dict):
        raise refuse(f"{name} must be numbers by name, not {shown(values)}.", name)
    if "" in values:
        raise refuse(f"{name} must have names that are not empty.", name)
    for key, value in values.items():
        # Integers of JSON may be larger than any number of the machine.
        if not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise refuse(f"{name}[{key!r}] must be a finite number, not {shown(value)}.", name)
    return {key: float(value) for key, value in values.items()}


def shown(value: object) -> str:
    """Writes a value for an error message, and cuts it if it is long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
