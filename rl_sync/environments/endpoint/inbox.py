"""Inbox of an episode: requests of its agent that wait for replies, and what was replied before."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import threading
from collections.abc import Callable

from rl_sync.environments.endpoint.refusals import closed, refuse
from rl_sync.environments.endpoint.requests import ChatRequest, Posted
from rl_sync.environments.endpoint.responses import given_message
from rl_sync.environments.interface import ANEW, Message, Reply, Turn


@dataclasses.dataclass(frozen=True, eq=False)
class _Waiting:
    """A request that waits.

    Attributes:
      is_gone: says whether nobody waits for the reply any more.
    """

    request: ChatRequest
    is_gone: Callable[[], bool]
    reply: concurrent.futures.Future[Reply]


class Inbox:
    """The requests of one episode, which are answered one after the other.

    A request that continues an earlier one, with the very reply that it got, is a turn behind that
    reply. Any other one begins a conversation.

    Threads of the endpoint call `ask` and `post`; the host's thread calls the rest.

    Args:
      arrived: set when there is news.

    Attributes:
      posted: the last outcome that the agent posted.
    """

    def __init__(self, arrived: threading.Event) -> None:
        self._arrived = arrived
        self._lock = threading.Lock()
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._taken: _Waiting | None = None
        self._answered: list[tuple[Message, ...]] = []
        self._is_closed = False
        self.posted: Posted | None = None

    def ask(self, request: ChatRequest, is_gone: Callable[[], bool]) -> Reply:
        """Waits for the reply to a request.

        Raises:
          RefusalError: the episode has ended, or ends meanwhile.
        """
        waiting = _Waiting(request, is_gone, concurrent.futures.Future())
        with self._lock:
            if self._is_closed:
                raise closed()
            self._waiting.append(waiting)
        self._arrived.set()
        return waiting.reply.result()

    def post(self, outcome: Posted) -> None:
        """Keeps the outcome that the agent posts, in place of one before.

        Raises:
          RefusalError: the episode has ended.
        """
        with self._lock:
            if self._is_closed:
                raise closed()
            self.posted = outcome

    def take(self) -> Turn | None:
        """Returns the turn of the request that waits longest, if there is one."""
        assert self._taken is None, "a request is answered before the next is taken"
        with self._lock:
            while self._waiting and self._taken is None:
                waiting = self._waiting.popleft()
                if not waiting.is_gone():
                    self._taken = waiting
        if self._taken is None:
            return None
        request = self._taken.request
        after, known = self._place(request.messages)
        return Turn(
            messages=request.messages[known:],
            tools=request.tools,
            stop_strings=request.stop,
            after=after,
            most_tokens=request.most_tokens,
        )

    def answer(self, reply: Reply) -> None:
        """Gives the reply to the request that was taken."""
        waiting, self._taken = self._taken, None
        assert waiting is not None, "a reply follows a request"
        if reply.refusal:
            waiting.reply.set_exception(refuse(reply.refusal, "messages"))
            return
        if reply.drawn is not None:
            said = given_message(waiting.request, reply)
            self._answered.append((*waiting.request.messages, said))
        waiting.reply.set_result(reply)

    def close(self) -> None:
        """Refuses all requests that wait, and those that come."""
        with self._lock:
            self._is_closed = True
            waiting = [*self._waiting, *([] if self._taken is None else [self._taken])]
            self._waiting.clear()
            self._taken = None
        for one in waiting:
            one.reply.set_exception(closed())

    def _place(self, messages: tuple[Message, ...]) -> tuple[int, int]:
        """Returns the longest conversation that messages continue, and the number of its own."""
        found, known = ANEW, 0
        for number, answered in enumerate(self._answered):
            # Of equal ones the last: its ids are more often still in the cache.
            if known <= len(answered) < len(messages) and messages[: len(answered)] == answered:
                found, known = number, len(answered)
        return found, known
