"""Events of a reply that is sent in blocks: its reasoning, its text, and each of its calls."""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping
from typing import Any

from rl_sync.addons.agents.endpoint import responses
from rl_sync.addons.agents.endpoint.chat_events import behind
from rl_sync.addons.agents.endpoint.items import ResponseItem
from rl_sync.addons.agents.endpoint.reasoning import NOTHING, Parted
from rl_sync.addons.agents.endpoint.refusals import RefusalError
from rl_sync.addons.agents.endpoint.requests import ChatRequest
from rl_sync.environments.interface import DrawnReply, PartialReply, Reply


class BlockEvents(abc.ABC):
    """The events of one response; a protocol says how each of them is written.

    Args:
      chat: the request for it.
    """

    def __init__(self, chat: ChatRequest) -> None:
        self._chat = chat
        self._sent = NOTHING
        self._open: ResponseItem | None = None
        self._place = -1
        """The place of the last block that was begun."""

    def part(self, index: int, part: PartialReply) -> bytes:
        """Makes the events of a part: the text that is certain since the last."""
        del index  # There is one choice.
        text = responses.given_beginning(self._chat, part.content)
        made = self._begun(part.drawn)
        if (new := behind(self._sent, text)) is not None:
            made += self._texts(new)
            self._sent = text
        return b"".join(made)

    def end(self) -> list[bytes]:
        """Returns no events, since none follow the response."""
        return []

    def _texts(self, new: Parted) -> list[bytes]:
        """Makes the events of new text: the reasoning's, then the content's."""
        made = []
        for kind, text in (("reasoning", new.reasoning), ("message", new.content)):
            if not text:
                continue
            if self._open is None or self._open.kind != kind:
                made += self._closed() + self._opened(ResponseItem(kind, ""))
            assert self._open is not None, "it was begun"
            self._open = ResponseItem(kind, self._open.text + text)
            made.append(self._delta(kind, text))
        return made

    @abc.abstractmethod
    def rest(self, index: int, reply: Reply) -> list[bytes]:
        """Makes the events of all that no part had, and of the end.

        Raises:
          RefusalError: see `rest_behind`.
        """

    @abc.abstractmethod
    def broken(self, refusal: RefusalError) -> bytes:
        """Makes the event of a reply that has no end."""

    @abc.abstractmethod
    def _begun(self, drawn: DrawnReply | None) -> list[bytes]:
        """Makes the events before all others, once."""

    @abc.abstractmethod
    def _opened(self, item: ResponseItem) -> list[bytes]:
        """Begins a block of text."""

    @abc.abstractmethod
    def _delta(self, kind: str, text: str) -> bytes:
        """Makes the event of more text in the block that is open."""

    @abc.abstractmethod
    def _closed(self) -> list[bytes]:
        """Ends the block that is open, if one is."""


def named_event(name: str, body: Mapping[str, Any]) -> bytes:
    """Writes an event with a name."""
    return f"event: {name}\ndata: {json.dumps(body)}\n\n".encode()
