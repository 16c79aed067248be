"""Server-sent events of a message, as clients of Anthropic read them."""

from __future__ import annotations

from typing import Any

from rl_sync.addons.agents.endpoint import messages, responses
from rl_sync.addons.agents.endpoint.block_events import BlockEvents, named_event
from rl_sync.addons.agents.endpoint.chat_events import rest_behind
from rl_sync.addons.agents.endpoint.items import ResponseItem, output
from rl_sync.addons.agents.endpoint.refusals import RefusalError
from rl_sync.addons.agents.endpoint.requests import ChatRequest
from rl_sync.environments.interface import DrawnReply, Reply


class MessageEvents(BlockEvents):
    """The events of one message: any number of parts, and the rest.

    The event with the reason of the end has the fields about the reply's tokens.

    Args:
      request: the request for it.
      number: the id of the message.
    """

    def __init__(self, request: ChatRequest, number: str) -> None:
        super().__init__(request)
        self._number, self._has_begun = number, False

    def rest(self, index: int, reply: Reply) -> list[bytes]:
        del index
        given = responses.given(self._chat, reply)
        new = rest_behind(self._sent, given.text)
        made = self._begun(reply.drawn) + self._texts(new)
        for item in output(given):
            if item.call is not None:
                made += self._closed() + self._opened(item) + [self._input(item)]
            elif item.kind == "message" and not item.text:
                made += self._closed() + self._opened(item)
        made += self._closed()
        end = {"delta": messages.ending(self._chat, reply), "usage": messages.usage(reply)}
        end |= messages.about_tokens(self._chat, reply)
        return [*made, _event("message_delta", end), _event("message_stop", {})]

    def broken(self, refusal: RefusalError) -> bytes:
        return named_event("error", refusal.message_body())

    def _begun(self, drawn: DrawnReply | None) -> list[bytes]:
        if self._has_begun:
            return []
        self._has_begun = True
        counted = messages.usage(Reply("", drawn=drawn)) | {"output_tokens": 0}
        return [
            _event("message_start", {"message": messages.head(self._number) | {"usage": counted}})
        ]

    def _opened(self, item: ResponseItem) -> list[bytes]:
        self._open, self._place = item, self._place + 1
        begun = messages.block(item)
        if item.call is not None:
            begun |= {"input": {}}
        elif item.kind == "reasoning":
            begun |= {"signature": ""}
        return [self._in_block("start", {"content_block": begun})]

    def _delta(self, kind: str, text: str) -> bytes:
        name = "thinking" if kind == "reasoning" else "text"
        return self._in_block("delta", {"delta": {"type": f"{name}_delta", name: text}})

    def _input(self, item: ResponseItem) -> bytes:
        delta = {"type": "input_json_delta", "partial_json": item.text}
        return self._in_block("delta", {"delta": delta})

    def _closed(self) -> list[bytes]:
        if self._open is None:
            return []
        item, self._open = self._open, None
        made = [self._in_block("stop", {})]
        if item.kind != "reasoning":
            return made
        signed = {"type": "signature_delta", "signature": messages.block(item)["signature"]}
        return [self._in_block("delta", {"delta": signed}), *made]

    def _in_block(self, name: str, fields: dict[str, Any]) -> bytes:
        return _event(f"content_block_{name}", {"index": self._place} | fields)


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return named_event(name, {"type": name} | fields)
