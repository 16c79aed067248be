"""Server-sent events of a response, as clients of OpenAI read them."""

from __future__ import annotations

import dataclasses
import http
import json
from typing import Any

from rl_sync.addons.agents.endpoint import responses
from rl_sync.addons.agents.endpoint.reasoning import NOTHING, Parted
from rl_sync.addons.agents.endpoint.refusals import RefusalError
from rl_sync.addons.agents.endpoint.requests import ChatRequest
from rl_sync.environments.interface import DrawnReply, PartialReply, Reply

DONE = b"data: [DONE]\n\n"


@dataclasses.dataclass
class _Choice:
    """The part of a response's choice that was already sent."""

    text: Parted = NOTHING
    tokens: int = 0
    has_begun: bool = False
    drawn: DrawnReply | None = None


class Events:
    """The events of one response: any number of parts of each choice, and its rest.

    The first event also has the prompt. All events together have the content, the calls and the
    tokens that the same response would have without a stream.

    Args:
      request: the request for it.
      number: the id of the response.
    """

    def __init__(self, request: ChatRequest, number: str) -> None:
        self._request = request
        self._head = responses.head(number, "chat.completion.chunk")
        self._choices = [_Choice() for _ in range(request.n)]

    def part(self, index: int, part: PartialReply) -> bytes:
        """Makes the event of a part: the text that is certain, and all tokens, since the last."""
        choice = self._choices[index]
        text = responses.given_beginning(self._request, part.content)
        fields = {"content": ""}
        if (new := behind(choice.text, text)) is not None:
            fields, choice.text = _fields(new), text
        choice.tokens += len(part.drawn.tokens)
        return self._delta(index, fields, part.drawn)

    def rest(self, index: int, reply: Reply) -> list[bytes]:
        """Makes the events of the rest of a choice, and of its end.

        Raises:
          RefusalError: see `rest_behind`.
        """
        choice = self._choices[index]
        given = responses.given(self._request, reply)
        fields = responses.message_fields(given)
        new = rest_behind(choice.text, given.text)
        if any(choice.text):
            del fields["content"]
            fields.pop("reasoning_content", None)
            fields |= _fields(new)
        for place, call in enumerate(fields.get("tool_calls", ())):
            call["index"] = place
        delta = {name: value for name, value in fields.items() if name != "role"}
        choice.drawn = reply.drawn
        drawn = None if reply.drawn is None else _undrawn(reply.drawn, choice.tokens)
        ended = {"index": index, "delta": {}, "finish_reason": responses.finish_reason(reply)}
        version = responses.version_field([reply.drawn])
        return [self._delta(index, delta, drawn), self._event({"choices": [ended]} | version)]

    def end(self) -> list[bytes]:
        """Makes the events after all choices."""
        if not self._request.stream_usage:
            return [DONE]
        counted = responses.usage([choice.drawn for choice in self._choices])
        return [self._event({"choices": [], "usage": counted}), DONE]

    def broken(self, refusal: RefusalError) -> bytes:
        """Makes the event of a reply that has no end."""
        return _encoded(refusal.body())

    def _delta(self, index: int, delta: dict[str, Any], drawn: DrawnReply | None) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": None}
        choice |= responses.token_fields(self._request, drawn)
        fields = {"choices": [choice]} | responses.version_field([drawn])
        if not self._choices[index].has_begun:
            self._choices[index].has_begun = True
            choice["delta"] = {"role": "assistant", **delta}
            fields |= responses.prompt_fields(self._request, drawn)
        return self._event(fields)

    def _event(self, fields: dict[str, Any]) -> bytes:
        return _encoded(self._head | fields)


def behind(sent: Parted, text: Parted) -> Parted | None:
    """Returns the unsent rest of a text; None if the text does not begin with the sent part.

    A text that does not begin so lacks bytes, which will come with later parts.
    """
    if not all(new.startswith(old) for new, old in zip(text, sent, strict=True)):
        return None
    return Parted(*(new[len(old) :] for new, old in zip(text, sent, strict=True)))


def rest_behind(sent: Parted, text: Parted) -> Parted:
    """Returns the unsent rest of a whole text.

    Raises:
      RefusalError: the reply does not begin with what was sent. A tokenizer may read bytes
        differently if the bytes behind them are not text.
    """
    if (new := behind(sent, text)) is not None:
        return new
    raise RefusalError(
        http.HTTPStatus.INTERNAL_SERVER_ERROR,
        "The reply has bytes that are no text, and its beginning, which was sent, reads"
        " differently with them: send the request again, or without stream.",
    )


def _fields(new: Parted) -> dict[str, str]:
    """Makes the fields of a delta of text."""
    if not new.reasoning:
        return {"content": new.content}
    return {"reasoning_content": new.reasoning} | ({"content": new.content} if new.content else {})


def _undrawn(drawn: DrawnReply, tokens: int) -> DrawnReply:
    """Leaves out the first tokens."""
    return dataclasses.replace(
        drawn,
        tokens=drawn.tokens[tokens:],
        logprobs=drawn.logprobs[tokens:],
        versions=drawn.versions[tokens:],
    )


def _encoded(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
