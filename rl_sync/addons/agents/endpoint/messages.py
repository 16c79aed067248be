"""Reads requests of Anthropic's Messages API as requests for chat, and writes replies as blocks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from rl_sync.addons.agents.endpoint import requests, responses
from rl_sync.addons.agents.endpoint.items import ResponseItem, output
from rl_sync.addons.agents.endpoint.reasoning import Parted, Reasoning
from rl_sync.addons.agents.endpoint.refusals import refuse
from rl_sync.addons.agents.endpoint.requests import ChatRequest, shown
from rl_sync.environments.interface import Message, Reply, ToolCall, ToolSchema

_HEEDED = {"model", "messages", "system", "tools", "max_tokens", "stop_sequences", "stream"}
_HEEDED |= {"thinking"}
_UNSERVED = {
    "input": "send the items as 'messages', or POST them to responses",
    "stop": "use 'stop_sequences'",
    "max_completion_tokens": "use 'max_tokens'",
    "mcp_servers": "give the policy tools that the agent runs",
    "container": "nothing here runs code",
}
_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")
"""A line that Claude Code writes at the head of its instructions, with a hash of the request: with
it, no request would continue an earlier one."""

_REASONING_TYPES = ("thinking", "redacted_thinking")
_SIGNATURE = "policy"
"""The signature of reasoning; clients send back none without one."""


def read_messages(data: bytes, reasoning: Reasoning = Reasoning()) -> ChatRequest:  # noqa: B008
    """Reads a request for a message, or for the number of its tokens.

    Args:
      data: the body.
      reasoning: see `ChatRequest`. A request with `thinking` gets it as a block of its own.

    Raises:
      RefusalError: the body is no such request, or asks for what the policy cannot do; with
        status 400.
    """
    body = requests.read_object(data)
    requests.require_served(body, _UNSERVED)
    wish = body.get("thinking")
    is_wanted = isinstance(wish, dict) and wish.get("type") not in (None, "disabled")
    reasoning = dataclasses.replace(reasoning, is_separate=reasoning.is_separate or is_wanted)
    tools = requests.read_list(body, "tools")
    return ChatRequest(
        messages=(*_system(body.get("system"), "system"), *_conversation(body, reasoning)),
        tools=tuple(_tool(one, f"tools[{i}]") for i, one in enumerate(tools)),
        stop=requests.read_stop(body.get("stop_sequences"), "stop_sequences"),
        most_tokens=requests.read_length(body, ["max_tokens"]),
        stream=requests.read_flag(body, "stream"),
        reasoning=reasoning,
        ignored=requests.ignored(body, _HEEDED),
    )


def message(request: ChatRequest, reply: Reply, number: str) -> dict[str, Any]:
    """Makes the response to a request.

    Args:
      number: the id of the message.
    """
    blocks = [block(item) for item in output(responses.given(request, reply))]
    whole = head(number) | {"content": blocks} | ending(request, reply)
    return whole | {"usage": usage(reply)} | about_tokens(request, reply)


def head(number: str) -> dict[str, Any]:
    """Makes the fields that a message has before its reply is drawn."""
    return {
        "id": number,
        "type": "message",
        "role": "assistant",
        "model": responses.MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def block(item: ResponseItem) -> dict[str, Any]:
    """Makes the block of an item of a reply."""
    if item.call is not None:
        called = {"id": item.call.call_id, "name": item.call.name}
        return {"type": "tool_use", **called, "input": dict(item.call.arguments)}
    if item.kind == "reasoning":
        return {"type": "thinking", "thinking": item.text, "signature": _SIGNATURE}
    return {"type": "text", "text": item.text}


def ending(request: ChatRequest, reply: Reply) -> dict[str, str | None]:
    """Says why a reply ended. A limit of the episode is one of the context: nothing was drawn."""
    stop = None
    if reply.is_cut:
        reason = "model_context_window_exceeded" if reply.drawn is None else "max_tokens"
    elif reply.tool_calls:
        reason = "tool_use"
    else:
        stop = responses.first_stop(request, reply)
        reason = "end_turn" if stop is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": stop}


def usage(reply: Reply) -> dict[str, int]:
    """Counts the tokens of a reply and of everything before it."""
    counted = responses.usage([reply.drawn])
    return {
        "input_tokens": counted["prompt_tokens"],
        "output_tokens": counted["completion_tokens"],
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def about_tokens(request: ChatRequest, reply: Reply) -> dict[str, Any]:
    """Makes the fields about the tokens of a reply, which Anthropic's messages do not have."""
    tokens = responses.token_fields(request, reply.drawn)
    del tokens["logprobs"]
    prompt = responses.prompt_fields(request, reply.drawn)
    return tokens | prompt | responses.version_field([reply.drawn])


def _system(value: object, place: str) -> tuple[Message, ...]:
    """Reads instructions: a text, or blocks of text."""
    if value is None:
        return ()
    blocks = [{"text": value}] if isinstance(value, str) else value
    texts = [requests.read_content([one], place) for one in _blocks(blocks, place)]
    text = "".join(_BILLING.sub("", one, count=1) if _BILLING.match(one) else one for one in texts)
    return (Message("system", text),) if text else ()


def _conversation(body: Mapping[str, Any], reasoning: Reasoning) -> tuple[Message, ...]:
    """Reads messages. Those of the assistant that follow each other are one reply."""
    messages: list[Message] = []
    reply: list[Any] = []
    for number, value in enumerate(requests.read_conversation(body)):
        place = f"messages[{number}]"
        role = value.get("role") if isinstance(value, dict) else None
        if role not in ("user", "assistant", "system"):
            raise refuse(
                f"{place} must have the role user, assistant or system, not {shown(value)}.", place
            )
        content = value.get("content")
        if role == "assistant":
            reply += _blocks(content, place)
            continue
        if reply:
            messages.append(_reply(reply, f"messages[{number - 1}]", reasoning))
            reply = []
        messages += _system(content, place) if role == "system" else _asked(content, place)
    if reply:
        raise refuse(
            "messages must not end with the assistant's: a reply that is begun is not continued"
            " here.",
            "messages",
        )
    return tuple(messages)


def _blocks(content: object, place: str) -> list[dict[str, Any]]:
    """Reads a content as a list of blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        raise refuse(f"{place}.content must be a text or a list of blocks.", place)
    return content


def _reply(blocks: list[dict[str, Any]], place: str, form: Reasoning) -> Message:
    """Reads a message of the assistant from its blocks."""
    thoughts = [one.get("thinking") for one in blocks if one.get("type") in _REASONING_TYPES]
    reasoning = "".join(text for text in thoughts if isinstance(text, str)).strip("\n")
    calls = [one for one in blocks if one.get("type") == "tool_use"]
    said = [one for one in blocks if one.get("type") not in (*_REASONING_TYPES, "tool_use")]
    text = form.joined(Parted(reasoning, requests.read_content(said, place)))
    return Message("assistant", text, tool_calls=tuple(_call(one, place) for one in calls))


def _call(value: Mapping[str, Any], place: str) -> ToolCall:
    name, call_id, arguments = value.get("name"), value.get("id"), value.get("input")
    if not (isinstance(name, str) and isinstance(call_id, str) and isinstance(arguments, dict)):
        raise refuse(
            f"{place} must call a tool by its name, with an id and an input, not {shown(value)}.",
            place,
        )
    return ToolCall(name, arguments, call_id)


def _asked(content: object, place: str) -> list[Message]:
    """Reads a message of the user: answers of tools, each a message, and other blocks."""
    messages: list[Message] = []
    parts: list[dict[str, Any]] = []
    for value in _blocks(content, place):
        if value.get("type") != "tool_result":
            parts.append(_part(value, place))
            continue
        if parts:
            messages.append(_shown("user", parts, place))
            parts = []
        call_id = value.get("tool_use_id")
        if not isinstance(call_id, str):
            raise refuse(f"{place} must have the tool_use_id of a call, not {shown(value)}.", place)
        answer = [_part(one, place) for one in _blocks(value.get("content") or "", place)]
        messages.append(dataclasses.replace(_shown("tool", answer, place), tool_call_id=call_id))
    if parts or not messages:
        messages.append(_shown("user", parts, place))
    return messages


def _shown(role: str, parts: list[dict[str, Any]], place: str) -> Message:
    content: Any = requests.read_shown(parts, place)
    return Message(role, content)


def _part(value: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Returns a block of a user's message as a part of chat."""
    kind, source = value.get("type"), value.get("source")
    if kind == "text":
        return dict(value)
    if kind != "image" or not isinstance(source, dict):
        raise refuse(
            f"{place} may have blocks of text, image and tool_result, not {shown(value)}.", place
        )
    url = source.get("url")
    if source.get("type") == "base64":
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tool(value: Any, place: str) -> ToolSchema:
    """Reads a tool of the agent's own."""
    kind = value.get("type") if isinstance(value, dict) else "none"
    if kind not in (None, "custom"):
        raise refuse(
            f"{place} must be a tool with a name and an input_schema, not {shown(value)}: nothing"
            " here searches, runs code or calls servers; give the policy a tool that the agent"
            " runs.",
            place,
        )
    function = {"name": value.get("name"), "parameters": value.get("input_schema")}
    if isinstance(value.get("description"), str):
        function["description"] = value["description"]
    if not isinstance(function["parameters"], dict):
        raise refuse(f"{place}.input_schema must be a JSON schema, not {shown(value)}.", place)
    return requests.read_tool({"type": "function", "function": function}, place)
