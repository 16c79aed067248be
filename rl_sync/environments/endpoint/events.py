"""Server-sent events of a response, as clients of OpenAI read them."""

from __future__ import annotations

import dataclasses
import http
import json
from typing import Any

from rl_sync.environments.endpoint import responses
from rl_sync.environments.endpoint.refusals import RefusalError
from rl_sync.environments.endpoint.requests import ChatRequest
from rl_sync.environments.interface import Drawn, Part, Reply

DONE = b"data: [DONE]\n\n"


class Events:
    """The events of one response: any number of parts, and the rest.

    The first event has the prompt, too. Together the events have the content, the calls and the
    tokens of the same response without a stream.

    Args:
      request: the request for it.
      number: the id of the response.
    """

    def __init__(self, request: ChatRequest, number: str) -> None:
        self._request = request
        self._head = responses.head(number, "chat.completion.chunk")
        self._content = ""
        self._tokens = 0
        self._has_begun = False

    def part(self, part: Part) -> bytes:
        """Makes the event of a part: the text that is certain, and all tokens, since the last."""
        given = responses.given_beginning(self._request, part.content)
        content = ""
        if given.startswith(self._content):  # Else bytes are missing, which later parts have.
            content, self._content = given[len(self._content) :], given
        self._tokens += len(part.drawn.tokens)
        return self._delta({"content": content}, part.drawn)

    def rest(self, reply: Reply) -> list[bytes]:
        """Makes the events of all that no part had, and those of the end.

        Raises:
          RefusalError: the reply does not begin with what was sent. A tokenizer may read bytes in
            another way, if bytes behind them make no text.
        """
        message = responses.given_message(self._request, reply)
        fields = responses.message_fields(message)
        if not message.content.startswith(self._content):
            raise RefusalError(
                http.HTTPStatus.INTERNAL_SERVER_ERROR,
                "The reply has bytes that are no text, and its beginning, which was sent, reads"
                " differently with them: send the request again, or without stream.",
            )
        if self._content:
            fields["content"] = message.content[len(self._content) :]
        for index, call in enumerate(fields.get("tool_calls", ())):
            call["index"] = index
        delta = {name: value for name, value in fields.items() if name != "role"}
        drawn = None if reply.drawn is None else _behind(reply.drawn, self._tokens)
        ended = {"index": 0, "delta": {}, "finish_reason": responses.finish_reason(reply)}
        version = responses.version_field(reply.drawn)
        events = [self._delta(delta, drawn), self._event({"choices": [ended]} | version)]
        if self._request.stream_usage:
            events.append(self._event({"choices": [], "usage": responses.usage(reply.drawn)}))
        return [*events, DONE]

    def broken(self, refusal: RefusalError) -> bytes:
        """Makes the event of a reply that has no end."""
        return _encoded(refusal.body())

    def _delta(self, delta: dict[str, Any], drawn: Drawn | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        choice |= responses.token_fields(self._request, drawn)
        fields = {"choices": [choice]} | responses.version_field(drawn)
        if not self._has_begun:
            self._has_begun = True
            choice["delta"] = {"role": "assistant", **delta}
            fields |= responses.prompt_fields(self._request, drawn)
        return self._event(fields)

    def _event(self, fields: dict[str, Any]) -> bytes:
        return _encoded(self._head | fields)


def _behind(drawn: Drawn, tokens: int) -> Drawn:
    """Leaves out the first tokens."""
    return dataclasses.replace(
        drawn,
        tokens=drawn.tokens[tokens:],
        logprobs=drawn.logprobs[tokens:],
        versions=drawn.versions[tokens:],
    )


def _encoded(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
