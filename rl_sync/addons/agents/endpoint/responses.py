"""Responses with a reply of the policy, as clients of OpenAI read them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from rl_sync.addons.agents.endpoint.reasoning import Parted
from rl_sync.addons.agents.endpoint.requests import ChatRequest
from rl_sync.environments.dialogue.tool_call_text import overlap
from rl_sync.environments.interface import DrawnReply, Message, Reply, ToolCall

MODEL = "policy"
"""The name of the model; requests may give any."""


class Given(NamedTuple):
    """A reply as the agent gets it: cut before the request's first stop text.

    Attributes:
      text: the reasoning, if it is a field of its own, and the content.
      whole: both in one text, as it is read back from a request.
      tool_calls: the calls.
    """

    text: Parted
    whole: str
    tool_calls: tuple[ToolCall, ...]

    def message(self) -> Message:
        """Returns the message that is read back if an agent sends all of it in a later request."""
        return Message("assistant", self.whole, tool_calls=self.tool_calls)

    def bare(self) -> Message:
        """Returns the message that is read back if the agent drops the reasoning."""
        return Message("assistant", self.text.content, tool_calls=self.tool_calls)


def given(request: ChatRequest, reply: Reply) -> Given:
    """Returns a reply as the agent gets it."""
    message = reply.message()
    content = _before_stop(request, message.content)
    text = request.reasoning.parted(content, reply.begun)
    return Given(text, request.reasoning.joined(text), message.tool_calls)


def given_beginning(request: ChatRequest, content: str) -> Parted:
    """Returns the beginning of a message that the agent gets, whatever follows its content."""
    certain = _before_stop(request, content)
    if certain == content:
        held = max((overlap(content, text) for text in request.stop), default=0)
        certain = content[: len(content) - held]
    return request.reasoning.certainly_parted(certain)


def completion(request: ChatRequest, replies: Sequence[Reply], number: str) -> dict[str, Any]:
    """Makes the response to a request.

    Args:
      replies: as many as the request wants.
      number: the id of the response.
    """
    choices = [
        {
            "index": index,
            "message": message_fields(given(request, reply)),
            "finish_reason": finish_reason(reply),
            **token_fields(request, reply.drawn),
        }
        for index, reply in enumerate(replies)
    ]
    drawn = [reply.drawn for reply in replies]
    response = head(number, "chat.completion") | {"choices": choices, "usage": usage(drawn)}
    # Replies after a limit of the episode have no ids.
    some = next((one for one in drawn if one is not None), None)
    return response | prompt_fields(request, some) | version_field(drawn)


def models() -> dict[str, Any]:
    """Makes the list of models, as clients of OpenAI and of Anthropic read it."""
    ends = {"first_id": MODEL, "last_id": MODEL, "has_more": False}
    return {"object": "list", "data": [model()], **ends}


def model() -> dict[str, Any]:
    """Makes the description of the one model."""
    openai = {"object": "model", "created": 0, "owned_by": "rl_sync"}
    anthropic = {"type": "model", "display_name": MODEL, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": MODEL, **openai, **anthropic}


def head(number: str, kind: str) -> dict[str, Any]:
    """Makes the fields that every response and event has."""
    return {"id": number, "object": kind, "created": int(time.time()), "model": MODEL}


def message_fields(message: Given) -> dict[str, Any]:
    """Makes the fields of a message."""
    calls = [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for call in message.tool_calls
    ]
    reasoning, content = message.text
    fields: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if reasoning:
        fields["reasoning_content"] = reasoning
    return fields | ({"tool_calls": calls} if calls else {})


def finish_reason(reply: Reply) -> str:
    """Says why a reply ended."""
    if reply.is_cut:
        return "length"
    return "tool_calls" if reply.tool_calls else "stop"


def token_fields(request: ChatRequest, drawn: DrawnReply | None) -> dict[str, Any]:
    """Makes the fields of tokens, which have ids for names, since one token may not be text."""
    if drawn is None:
        return {"logprobs": None, "token_ids": []}
    values = logprobs(drawn)
    return {
        "logprobs": {"content": values, "refusal": None} if request.logprobs else None,
        "token_ids": drawn.tokens.tolist(),
        "policy_versions": drawn.versions.tolist(),
    }


def logprobs(drawn: DrawnReply) -> list[dict[str, Any]]:
    """Lists the log-probabilities of drawn tokens."""
    values = zip(drawn.tokens.tolist(), drawn.logprobs.tolist(), strict=True)
    return [
        {"token": f"token_id:{i}", "logprob": value, "bytes": None, "top_logprobs": []}
        for i, value in values
    ]


def usage(drawn: Sequence[DrawnReply | None]) -> dict[str, int]:
    """Counts the tokens of replies to one prompt."""
    there = [one for one in drawn if one is not None]
    before = max((len(one.prompt) for one in there), default=0)
    drawn_tokens = sum(len(one.tokens) for one in there)
    return {
        "prompt_tokens": before,
        "completion_tokens": drawn_tokens,
        "total_tokens": before + drawn_tokens,
    }


def prompt_fields(request: ChatRequest, drawn: DrawnReply | None) -> dict[str, Any]:
    """Makes the fields about a request, which OpenAI's responses do not have."""
    return {
        "prompt_token_ids": [] if drawn is None else drawn.prompt.tolist(),
        "ignored": list(request.ignored),
    }


def version_field(drawn: Sequence[DrawnReply | None]) -> dict[str, Any]:
    """Makes the field with the version of the newest weights that drew a last token."""
    lasts = [int(one.versions[-1]) for one in drawn if one is not None and len(one.versions)]
    return {"policy_version": max(lasts, default=None)}


def first_stop(request: ChatRequest, reply: Reply) -> str | None:
    """Returns the stop text that ended a reply; None if none did."""
    return _first_stop(request, reply.message().content)[1]


def _before_stop(request: ChatRequest, content: str) -> str:
    """Cuts a content before the first stop text."""
    return content[: _first_stop(request, content)[0]]


def _first_stop(request: ChatRequest, content: str) -> tuple[int, str | None]:
    """Finds the first stop text: its place and itself, or the content's end and None."""
    found = [(content.find(text), text) for text in request.stop if text in content]
    return min(found, default=(len(content), None))
