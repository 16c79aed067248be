"""Inbox of an episode: its agent's waiting requests, and the earlier replies."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import itertools
import threading
from collections.abc import Callable

from rl_sync.addons.agents.endpoint.reasoning import Reasoning
from rl_sync.addons.agents.endpoint.refusals import RefusalError, closed, refuse
from rl_sync.addons.agents.endpoint.requests import ChatRequest, Posted
from rl_sync.addons.agents.endpoint.responses import Given, given
from rl_sync.environments.interface import ANEW, Message, PartialReply, Reply, StreamedTurn, Turn

Hear = Callable[[int, PartialReply | None], None]
"""Function that takes parts of the choices of a response, each with the choice's number; None ends
one."""


class Awaited:
    """A reply that a request waits for.

    Args:
      request: the request.
      is_gone: function that says whether nobody waits for the reply any more.
      index: number of the reply among the `request.n` choices of the response.
      hear: function that takes the parts of the reply, shared by the choices of a response.
    """

    def __init__(
        self, request: ChatRequest, is_gone: Callable[[], bool], index: int, hear: Hear
    ) -> None:
        self.request, self.is_gone, self.index = request, is_gone, index
        self._reply: concurrent.futures.Future[Reply] = concurrent.futures.Future()
        self._hear = hear
        self._reply.add_done_callback(lambda _: hear(index, None))

    def reply(self) -> Reply:
        """Returns the reply, once `hear` was told of its end.

        Raises:
          RefusalError: there is none.
        """
        return self._reply.result()

    def hear(self, part: PartialReply) -> None:
        """Adds a part of the reply, unless nobody waits for it any more."""
        if not self._reply.done():
            self._hear(self.index, part)

    def answer(self, reply: Reply) -> None:
        """Sets the reply."""
        self._reply.set_result(reply)

    def refuse(self, refusal: RefusalError) -> None:
        """Sets the reason why there is no reply."""
        self._reply.set_exception(refusal)


@dataclasses.dataclass(frozen=True)
class _Answered:
    """A conversation up to a reply.

    Attributes:
      messages: its messages, with the reasoning of replies.
      bare: its messages without reasoning.
    """

    messages: tuple[Message, ...] = ()
    bare: tuple[Message, ...] = ()

    def then(self, messages: tuple[Message, ...], said: Given) -> _Answered:
        """Returns this conversation continued by new messages and a reply to them."""
        return _Answered(
            (*self.messages, *messages, said.message()), (*self.bare, *messages, said.bare())
        )

    def begins(self, messages: tuple[Message, ...]) -> bool:
        """Says whether longer messages begin with this conversation, with or without reasoning."""
        if messages[: len(self.messages)] == self.messages:
            return True
        mine = zip(messages, self.messages, self.bare, strict=False)
        return all(one in (whole, bare) for one, whole, bare in mine)


@dataclasses.dataclass(frozen=True)
class _Taken:
    """A request that was taken, with its place: `Turn.after` and `Turn.messages`."""

    awaited: Awaited
    after: int
    messages: tuple[Message, ...]


class Inbox:
    """The requests of one episode; several may be in flight.

    A request that continues an earlier one with exactly its reply is a turn after that reply. Any
    other request begins a conversation.

    The endpoint's thread calls `ask` and `post`; the host's thread calls the rest.

    Args:
      arrived: event that is set when something arrives.
      reasoning: form of the reasoning of replies. If it is separate, a request may continue a
        reply with or without it.

    Attributes:
      posted: last outcome that the agent posted.
    """

    def __init__(self, arrived: threading.Event, reasoning: Reasoning | None = None) -> None:
        self._arrived, self.reasoning = arrived, reasoning or Reasoning()
        self._lock = threading.Lock()
        self._waiting: collections.deque[Awaited] = collections.deque()
        self._taken: dict[int, _Taken] = {}
        self._numbers = itertools.count(1)
        self._answered: list[_Answered] = []
        self._kept: dict[str, tuple[Message, ...]] = {}
        self._is_closed = False
        self.posted: Posted | None = None

    @property
    def under_way(self) -> int:
        """Number of requests that were taken and not yet answered."""
        return len(self._taken)

    def ask(self, request: ChatRequest, is_gone: Callable[[], bool], hear: Hear) -> list[Awaited]:
        """Adds a request to those that wait; its replies can be waited for.

        Args:
          is_gone: says whether nobody waits for the replies any more.
          hear: takes the parts of the replies, and their ends; any thread calls it.

        Returns:
          The replies to wait for, as many as the request wants.

        Raises:
          RefusalError: the episode has ended.
        """
        waiting = [Awaited(request, is_gone, index, hear) for index in range(request.n)]
        with self._lock:
            if self._is_closed:
                raise closed()
            self._waiting += waiting
        self._arrived.set()
        return waiting

    def post(self, outcome: Posted) -> None:
        """Stores the agent's outcome, in place of an earlier one.

        Raises:
          RefusalError: the episode has ended.
        """
        with self._lock:
            if self._is_closed:
                raise closed()
            self.posted = outcome

    def keep(self, response: str, messages: tuple[Message, ...]) -> None:
        """Stores the conversation up to a response, for requests that only name the response."""
        with self._lock:
            self._kept[response] = messages

    def kept(self, response: str) -> tuple[Message, ...] | None:
        """Returns the conversation up to a response; None if it does not belong to this episode."""
        with self._lock:
            return self._kept.get(response)

    def take(self) -> Turn | None:
        """Returns the turn of the request that waits longest, if there is one."""
        waiting = None
        while waiting is None or waiting.is_gone():
            with self._lock:
                if not self._waiting:
                    return None
                waiting = self._waiting.popleft()
        number, request = next(self._numbers), waiting.request
        after, known = self._place(request.messages)
        self._taken[number] = _Taken(waiting, after, request.messages[known:])
        turn = Turn(
            messages=request.messages[known:],
            tools=request.tools,
            stop_strings=request.stop,
            after=after,
            most_tokens=request.most_tokens,
            request=number,
        )
        return StreamedTurn(**vars(turn), hear=waiting.hear) if request.stream else turn

    def answer(self, reply: Reply) -> None:
        """Sets the reply to the request that `reply.request` numbers; 0 is the one taken first."""
        taken = self._taken.pop(reply.request or next(iter(self._taken)))
        waiting = taken.awaited
        if reply.refusal:
            waiting.refuse(refuse(reply.refusal, "messages"))
            return
        if reply.drawn is not None:
            before = _Answered() if taken.after == ANEW else self._answered[taken.after]
            self._answered.append(before.then(taken.messages, given(waiting.request, reply)))
        waiting.answer(reply)

    def close(self) -> None:
        """Rejects all waiting and all future requests."""
        with self._lock:
            self._is_closed = True
            waiting = [*self._waiting, *(taken.awaited for taken in self._taken.values())]
            self._waiting.clear()
            self._taken.clear()
        for one in waiting:
            one.refuse(closed())

    def _place(self, messages: tuple[Message, ...]) -> tuple[int, int]:
        """Returns the longest conversation that messages continue, and its number of messages."""
        found, known = ANEW, 0
        for number, answered in enumerate(self._answered):
            size = len(answered.messages)
            # Of equally long ones the last wins: its ids are more often still in the cache.
            if known <= size < len(messages) and answered.begins(messages):
                found, known = number, size
        return found, known
