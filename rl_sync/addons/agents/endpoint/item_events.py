"""Server-sent events of a response with items, as clients of OpenAI's Responses API read them."""

from __future__ import annotations

import time
from typing import Any

from rl_sync.addons.agents.endpoint import items, responses
from rl_sync.addons.agents.endpoint.block_events import BlockEvents, named_event
from rl_sync.addons.agents.endpoint.chat_events import rest_behind
from rl_sync.addons.agents.endpoint.items import ItemsRequest, ResponseItem
from rl_sync.addons.agents.endpoint.refusals import RefusalError
from rl_sync.environments.interface import DrawnReply, Reply

_TEXTS = {"reasoning": "reasoning_text", "message": "output_text"}


class ItemEvents(BlockEvents):
    """The events of one response: any number of parts, and the rest.

    The last event has the whole response, with the fields about its tokens.

    Args:
      request: the request for it.
      number: the id of the response.
    """

    def __init__(self, request: ItemsRequest, number: str) -> None:
        super().__init__(request.chat)
        self._request, self._number = request, number
        self._created_secs = time.time()
        self._events = 0

    def rest(self, index: int, reply: Reply) -> list[bytes]:
        del index
        given = responses.given(self._chat, reply)
        new = rest_behind(self._sent, given.text)
        whole = items.response(self._request, reply, self._number, self._created_secs)
        made = self._begun(reply.drawn) + self._texts(new)
        if not given.text.content and not given.tool_calls:
            made += self._closed() + self._opened(ResponseItem("message", ""))
        made += self._closed(whole)
        for item in items.output(given):
            if item.call is not None:
                made += self._call(item, whole)
        return [*made, self._event(f"response.{whole['status']}", {"response": whole})]

    def broken(self, refusal: RefusalError) -> bytes:
        error = refusal.body()["error"]
        return self._event("error", {"error": error, **error})

    def _begun(self, drawn: DrawnReply | None) -> list[bytes]:
        del drawn  # The last event has the ids of the prompt.
        if self._events:
            return []
        head = items.head(self._request, self._number, self._created_secs)
        names = ("response.created", "response.in_progress")
        return [self._event(name, {"response": head}) for name in names]

    def _opened(self, item: ResponseItem) -> list[bytes]:
        self._open, self._place = item, self._place + 1
        fields = item.fields(self._item_id(), "in_progress") | {"content": []}
        return [
            self._added(fields),
            self._in_part("content_part.added", {"part": item.part()}),
        ]

    def _closed(self, whole: dict[str, Any] | None = None) -> list[bytes]:
        """Ends the item that is open, if one is; `whole` is the response, once it is known."""
        if self._open is None:
            return []
        item, self._open = self._open, None
        fields = item.fields(self._item_id(), "completed")
        if whole is not None:
            fields = whole["output"][self._place]
        (part,) = fields["content"]
        extra = {} if item.kind == "reasoning" else {"logprobs": part["logprobs"]}
        return [
            self._in_part(f"{_TEXTS[item.kind]}.done", {"text": item.text} | extra),
            self._in_part("content_part.done", {"part": part}),
            self._done(fields),
        ]

    def _call(self, item: ResponseItem, whole: dict[str, Any]) -> list[bytes]:
        """Makes the events of a call, which comes whole."""
        self._place += 1
        fields = whole["output"][self._place]
        place = {"item_id": self._item_id(), "output_index": self._place}
        named = "response.function_call_arguments"
        return [
            self._added(fields | {"arguments": "", "status": "in_progress"}),
            self._event(f"{named}.delta", place | {"delta": item.text}),
            self._event(f"{named}.done", place | {"arguments": item.text, "name": fields["name"]}),
            self._done(fields),
        ]

    def _delta(self, kind: str, text: str) -> bytes:
        extra: dict[str, Any] = {} if kind == "reasoning" else {"logprobs": []}
        return self._in_part(f"{_TEXTS[kind]}.delta", {"delta": text} | extra)

    def _added(self, fields: dict[str, Any]) -> bytes:
        place = {"output_index": self._place, "item": fields}
        return self._event("response.output_item.added", place)

    def _done(self, fields: dict[str, Any]) -> bytes:
        place = {"output_index": self._place, "item": fields}
        return self._event("response.output_item.done", place)

    def _in_part(self, name: str, fields: dict[str, Any]) -> bytes:
        place = {"item_id": self._item_id(), "output_index": self._place, "content_index": 0}
        return self._event(f"response.{name}", place | fields)

    def _item_id(self) -> str:
        return items.item_id(self._number, self._place)

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        body = {"type": name, "sequence_number": self._events, **fields} | {"type": name}
        self._events += 1
        return named_event(name, body)
