"""Responses with a reply of the policy, as clients of OpenAI read them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from rl_sync.environments.endpoint.requests import ChatRequest
from rl_sync.environments.interface import Drawn, Message, Reply

MODEL = "policy"
"""The name of the model; requests may give any."""


def given_message(request: ChatRequest, reply: Reply) -> Message:
    """Returns a reply as the agent gets it: cut before the request's first stop text."""
    message = reply.message()
    starts = [message.content.find(text) for text in request.stop]
    end = min((start for start in starts if start >= 0), default=len(message.content))
    return Message(message.role, message.content[:end], tool_calls=message.tool_calls)


def completion(request: ChatRequest, reply: Reply, number: str) -> dict[str, Any]:
    """Makes the response to a request.

    Args:
      number: the id of the response.
    """
    choice = {
        "index": 0,
        "message": _message(given_message(request, reply)),
        "finish_reason": _finish(reply),
        **_tokens_of_choice(request, reply.drawn),
    }
    head = _head(number, "chat.completion")
    return head | {"choices": [choice], "usage": _usage(reply.drawn), **_about(request, reply)}


def events(request: ChatRequest, reply: Reply, number: str) -> Iterator[bytes]:
    """Makes the server-sent events of a response, of which the first has all of the message.

    Args:
      number: the id of the response.
    """
    head = _head(number, "chat.completion.chunk")
    message = _message(given_message(request, reply))
    for index, call in enumerate(message.get("tool_calls", ())):
        call["index"] = index
    begun = {"index": 0, "delta": message, "finish_reason": None}
    begun |= _tokens_of_choice(request, reply.drawn)
    ended = {"index": 0, "delta": {}, "finish_reason": _finish(reply)}
    yield _event(head | {"choices": [begun], **_about(request, reply)})
    yield _event(head | {"choices": [ended]})
    if request.stream_usage:
        yield _event(head | {"choices": [], "usage": _usage(reply.drawn)})
    yield b"data: [DONE]\n\n"


def models() -> dict[str, Any]:
    """Makes the list of models."""
    return {"object": "list", "data": [model()]}


def model() -> dict[str, Any]:
    """Makes the description of the one model."""
    return {"id": MODEL, "object": "model", "created": 0, "owned_by": "rl_sync"}


def _head(number: str, kind: str) -> dict[str, Any]:
    return {"id": number, "object": kind, "created": int(time.time()), "model": MODEL}


def _message(message: Message) -> dict[str, Any]:
    calls = [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for call in message.tool_calls
    ]
    content = message.content or (None if calls else "")
    return {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})


def _finish(reply: Reply) -> str:
    if reply.is_cut:
        return "length"
    return "tool_calls" if reply.tool_calls else "stop"


def _tokens_of_choice(request: ChatRequest, drawn: Drawn | None) -> dict[str, Any]:
    """Returns the tokens of a reply, named by their ids: one alone need not be any text."""
    if drawn is None:
        return {"logprobs": None, "token_ids": []}
    ids, logprobs = drawn.tokens.tolist(), None
    if request.logprobs:
        values = zip(ids, drawn.logprobs.tolist(), strict=True)
        logprobs = {
            "content": [
                {"token": f"token_id:{i}", "logprob": value, "bytes": None, "top_logprobs": []}
                for i, value in values
            ],
            "refusal": None,
        }
    versions = drawn.versions.tolist()
    return {"logprobs": logprobs, "token_ids": ids, "policy_versions": versions}


def _usage(drawn: Drawn | None) -> dict[str, int]:
    before, drawn_tokens = (0, 0) if drawn is None else (len(drawn.prompt), len(drawn.tokens))
    return {
        "prompt_tokens": before,
        "completion_tokens": drawn_tokens,
        "total_tokens": before + drawn_tokens,
    }


def _about(request: ChatRequest, reply: Reply) -> dict[str, Any]:
    """Returns the fields that OpenAI's responses do not have."""
    drawn = reply.drawn
    versions = [] if drawn is None else drawn.versions.tolist()
    return {
        "prompt_token_ids": [] if drawn is None else drawn.prompt.tolist(),
        "policy_version": versions[-1] if versions else None,
        "ignored": list(request.ignored),
    }


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
