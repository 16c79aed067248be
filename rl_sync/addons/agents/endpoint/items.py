"""Reads requests of OpenAI's Responses API as requests for chat, and writes replies as items."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rl_sync.addons.agents.endpoint import requests, responses
from rl_sync.addons.agents.endpoint.reasoning import Parted, Reasoning
from rl_sync.addons.agents.endpoint.refusals import refuse
from rl_sync.addons.agents.endpoint.requests import ChatRequest, shown
from rl_sync.environments.interface import Message, Reply, ToolCall, ToolSchema

LOGPROBS = "message.output_text.logprobs"
"""The name by which `include` asks for log-probabilities."""

_HEEDED = {"model", "input", "instructions", "tools", "max_output_tokens", "previous_response_id"}
_HEEDED |= {"stop", "stream", "store", "metadata"}
# These ask for no more than what there is.
_HEEDED |= {"include", "background"}
_UNSERVED = {
    "messages": "send the messages as 'input', or POST them to chat/completions",
    "max_tokens": "use 'max_output_tokens'",
    "max_completion_tokens": "use 'max_output_tokens'",
    "n": "a response has one reply; chat/completions serves 'n'",
    "conversation": "use 'previous_response_id', or send all items as 'input'",
    "prompt": "no prompts are stored here; send its text as 'instructions' and 'input'",
}


@dataclasses.dataclass(frozen=True)
class ItemsRequest:
    """A request for a response.

    Attributes:
      chat: the equivalent request for chat.
      conversation: its messages without the instructions, which are only for this response.
      keeps: whether later requests may continue the response by naming it.
      echoed: fields of the request that the response repeats.
    """

    chat: ChatRequest
    conversation: tuple[Message, ...]
    keeps: bool
    echoed: Mapping[str, Any]


def read_items(
    data: bytes,
    kept: Callable[[str], tuple[Message, ...] | None],
    reasoning: Reasoning = Reasoning(),  # noqa: B008
) -> ItemsRequest:
    """Reads a request for a response.

    Args:
      data: the body.
      kept: returns the conversation up to an earlier response, by its id.
      reasoning: see `ChatRequest`.

    Raises:
      RefusalError: the body is no such request, or asks for what the policy cannot do; with
        status 400.
    """
    body = requests.read_object(data)
    _require_served(body)
    instructions = body.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise refuse(f"instructions must be a text, not {shown(instructions)}.", "instructions")
    conversation = (
        *_before(body.get("previous_response_id"), kept),
        *_input(body.get("input"), reasoning),
    )
    system = (Message("system", instructions),) if instructions else ()
    tools = requests.read_list(body, "tools")
    include = requests.read_list(body, "include")
    chat = ChatRequest(
        messages=(*system, *conversation),
        tools=tuple(_tool(one, f"tools[{i}]") for i, one in enumerate(tools)),
        stop=requests.read_stop(body.get("stop")),
        most_tokens=requests.read_length(body, ["max_output_tokens"]),
        stream=requests.read_flag(body, "stream"),
        logprobs=LOGPROBS in include,
        reasoning=reasoning,
        ignored=requests.ignored(body, _HEEDED),
    )
    echoed = {
        "instructions": instructions,
        "max_output_tokens": chat.most_tokens,
        "metadata": body.get("metadata") or {},
        "previous_response_id": body.get("previous_response_id"),
        "tools": tools,
        "tool_choice": body.get("tool_choice") or "auto",
        "parallel_tool_calls": True,
        "temperature": None,
        "top_p": None,
    }
    return ItemsRequest(chat, conversation, body.get("store") is not False, echoed)


def _require_served(body: Mapping[str, Any]) -> None:
    """Refuses fields that ask for what responses do not do here."""
    one = {"n": None} if body.get("n") == 1 else {}
    requests.require_served({**body, **one}, _UNSERVED)
    if requests.read_flag(body, "background"):
        raise refuse(
            "'background' is not served: wait for the response, or stream it.", "background"
        )


class ResponseItem(NamedTuple):
    """An item of a response's output.

    Attributes:
      kind: `reasoning`, `message` or `function_call`.
      text: its text, or the arguments of its call.
      call: the call.
    """

    kind: str
    text: str
    call: ToolCall | None = None

    def fields(self, number: str, status: str, logprobs: Sequence[object] = ()) -> dict[str, Any]:
        """Makes the fields of the item, whose id is `number`."""
        head = {"id": number, "type": self.kind, "status": status}
        if self.call is not None:
            called = {"call_id": self.call.call_id, "name": self.call.name}
            return head | called | {"arguments": self.text}
        if self.kind == "reasoning":
            return head | {"summary": [], "content": [self.part()]}
        return head | {"role": "assistant", "content": [self.part(logprobs)]}

    def part(self, logprobs: Sequence[object] = ()) -> dict[str, Any]:
        """Makes the fields of the item's one content."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        text = {"type": "output_text", "text": self.text, "annotations": []}
        return text | {"logprobs": list(logprobs)}


def output(given: responses.Given) -> list[ResponseItem]:
    """Splits a reply into items. A reply without text and calls is one empty message."""
    reasoning, content = given.text
    items = [ResponseItem("reasoning", reasoning)] if reasoning else []
    if content or not given.tool_calls:
        items.append(ResponseItem("message", content))
    calls = [
        ResponseItem("function_call", json.dumps(call.arguments), call) for call in given.tool_calls
    ]
    return items + calls


def item_id(number: str, place: int) -> str:
    """Names the item in a place of a response."""
    return f"item_{number.removeprefix('resp_')}_{place}"


def response(
    request: ItemsRequest, reply: Reply, number: str, created_secs: float | None = None
) -> dict[str, Any]:
    """Makes the response to a request.

    Args:
      number: the id of the response.
      created_secs: the time at which the response was begun; None for now.
    """
    fields = head(request, number, time.time() if created_secs is None else created_secs)
    status = "incomplete" if reply.is_cut else "completed"
    logprobs = (
        responses.logprobs(reply.drawn) if request.chat.logprobs and reply.drawn is not None else ()
    )
    there = output(responses.given(request.chat, reply))
    states = ["completed"] * (len(there) - 1) + [status]
    items = [
        item.fields(item_id(number, place), state, logprobs)
        for place, (item, state) in enumerate(zip(there, states, strict=True))
    ]
    reason = {"reason": "max_output_tokens"} if reply.is_cut else None
    fields |= {"status": status, "incomplete_details": reason, "output": items}
    fields["usage"] = _usage(reply)
    tokens = responses.token_fields(request.chat, reply.drawn)
    del tokens["logprobs"]
    drawn = responses.prompt_fields(request.chat, reply.drawn)
    return fields | tokens | drawn | responses.version_field([reply.drawn])


def head(request: ItemsRequest, number: str, created_secs: float) -> dict[str, Any]:
    """Makes the fields that a response has before its reply is drawn."""
    return {
        "id": number,
        "object": "response",
        "created_at": int(created_secs),
        "model": responses.MODEL,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
        **request.echoed,
    }


def conversation_after(request: ItemsRequest, reply: Reply) -> tuple[Message, ...]:
    """Returns the conversation with a reply, which later requests name by the response's id."""
    return (*request.conversation, responses.given(request.chat, reply).message())


def _before(
    response_id: object, kept: Callable[[str], tuple[Message, ...] | None]
) -> tuple[Message, ...]:
    if response_id is None:
        return ()
    found = kept(response_id) if isinstance(response_id, str) else None
    if found is None:
        raise refuse(
            f"previous_response_id {shown(response_id)} is no response of this episode that was"
            " kept: name one of this episode without 'store': false, or send all items as 'input'.",
            "previous_response_id",
        )
    return found


def _tool(value: Any, place: str) -> ToolSchema:
    """Reads a tool in the flat form."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind != "function":
        raise refuse(
            f"{place} must be a tool of type 'function', not {shown(value)}: nothing here searches,"
            " runs code or calls servers; give the policy a function that the agent runs.",
            place,
        )
    function = {name: one for name, one in value.items() if name != "type" and one is not None}
    return requests.read_tool({"type": "function", "function": function}, place)


def _input(value: object, form: Reasoning) -> tuple[Message, ...]:
    """Reads the input. Items of one reply, which follow each other, become one message."""
    if isinstance(value, str):
        return (Message("user", value),)
    if not isinstance(value, list) or not value:
        raise refuse(f"input must be a text or a list of items, not {shown(value)}.", "input")
    messages: list[Message] = []
    reply = _OpenReply()
    for number, item in enumerate(value):
        place = f"input[{number}]"
        kind = (item.get("type") or "message") if isinstance(item, dict) else None
        is_said = kind == "message" and item.get("role") == "assistant"
        begins = (is_said or kind == "reasoning") and (reply.content is not None or reply.calls)
        if begins or not (is_said or kind in ("reasoning", "function_call")):
            messages += reply.messages(form)
            reply = _OpenReply()
        if is_said:
            content = _texts(item.get("content"))
            reply.content = requests.read_content(content, place, may_lack=True)
        elif kind == "reasoning":
            reply.reasoning += _reasoning(item, place)
        elif kind == "function_call":
            reply.calls += (_call(item, place),)
        elif kind == "function_call_output":
            messages.append(_tool_output(item, place))
        elif kind == "message":
            said = {"role": item.get("role"), "content": _texts(item.get("content"))}
            messages.append(requests.read_message(said, place, form))
        else:
            raise refuse(
                f"{place} must be a message, reasoning, function_call or function_call_output, not"
                f" {shown(item)}: others are not served.",
                place,
            )
    return (*messages, *reply.messages(form))


@dataclasses.dataclass
class _OpenReply:
    """The items so far of one reply; `content` is None until the item with its message."""

    reasoning: str = ""
    content: str | None = None
    calls: tuple[ToolCall, ...] = ()

    def messages(self, form: Reasoning) -> list[Message]:
        """Returns the reply's message, or nothing if the reply has no item yet."""
        if not self.reasoning and self.content is None and not self.calls:
            return []
        text = form.joined(Parted(self.reasoning.strip("\n"), self.content or ""))
        return [Message("assistant", text, tool_calls=self.calls)]


def _texts(content: object) -> Any:
    """Returns the parts of a content, with each refusal as a part of text."""
    if not isinstance(content, list):
        return content
    return [
        {"text": part.get("refusal")}
        if isinstance(part, dict) and part.get("type") == "refusal"
        else part
        for part in content
    ]


def _reasoning(item: Mapping[str, Any], place: str) -> str:
    """Returns the text of an item of reasoning; it is empty if the reasoning is encrypted."""
    content = item.get("content")
    return requests.read_content(content, place) if content is not None else ""


def _call(item: Mapping[str, Any], place: str) -> ToolCall:
    name, call_id = item.get("name"), item.get("call_id")
    if not isinstance(name, str) or not isinstance(call_id, str):
        raise refuse(f"{place} must have a name and a call_id, not {shown(item)}.", place)
    arguments = requests.read_arguments(item.get("arguments"), f"{place}.arguments", place)
    return ToolCall(name, arguments, call_id)


def _tool_output(item: Mapping[str, Any], place: str) -> Message:
    call_id = item.get("call_id")
    if not isinstance(call_id, str):
        raise refuse(f"{place} must have the call_id that it answers, not {shown(item)}.", place)
    content = item.get("output")
    if not isinstance(content, str | list):
        raise refuse(f"{place}.output must be a text, not {shown(content)}.", place)
    output: Any = requests.read_shown(content, place)
    return Message("tool", output, tool_call_id=call_id)


def _usage(reply: Reply) -> dict[str, Any]:
    counted = responses.usage([reply.drawn])
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted["total_tokens"],
    }
