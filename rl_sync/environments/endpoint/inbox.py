"""Inbox of an episode: requests of its agent that wait for replies, and what was replied before."""

from __future__ import annotations

import collections
import concurrent.futures
import queue
import threading
from collections.abc import Callable, Iterator

from rl_sync.environments.endpoint.refusals import RefusalError, closed, refuse
from rl_sync.environments.endpoint.requests import ChatRequest, Posted
from rl_sync.environments.endpoint.responses import given_message
from rl_sync.environments.interface import ANEW, Message, Part, Reply, StreamedTurn, Turn


class Awaited:
    """A reply that a request waits for.

    Args:
      request: the request.
      is_gone: says whether nobody waits for the reply any more.
    """

    def __init__(self, request: ChatRequest, is_gone: Callable[[], bool]) -> None:
        self.request, self.is_gone = request, is_gone
        self._reply: concurrent.futures.Future[Reply] = concurrent.futures.Future()
        self._parts: queue.SimpleQueue[Part | None] = queue.SimpleQueue()
        self._reply.add_done_callback(lambda _: self._parts.put(None))

    def parts(self) -> Iterator[Part]:
        """Waits for the parts of the reply, which end when all of it is there."""
        return iter(self._parts.get, None)

    def reply(self) -> Reply:
        """Waits for the reply.

        Raises:
          RefusalError: there is none.
        """
        return self._reply.result()

    def hear(self, part: Part) -> None:
        """Gives a part of the reply."""
        self._parts.put(part)

    def answer(self, reply: Reply) -> None:
        """Gives the reply."""
        self._reply.set_result(reply)

    def refuse(self, refusal: RefusalError) -> None:
        """Gives the reason why there is no reply."""
        self._reply.set_exception(refusal)


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
        self._waiting: collections.deque[Awaited] = collections.deque()
        self._taken: Awaited | None = None
        self._answered: list[tuple[Message, ...]] = []
        self._is_closed = False
        self.posted: Posted | None = None

    def ask(self, request: ChatRequest, is_gone: Callable[[], bool]) -> Awaited:
        """Asks for the reply to a request, which is refused if the episode ends meanwhile.

        Args:
          is_gone: says whether nobody waits for the reply any more.

        Raises:
          RefusalError: the episode has ended.
        """
        waiting = Awaited(request, is_gone)
        with self._lock:
            if self._is_closed:
                raise closed()
            self._waiting.append(waiting)
        self._arrived.set()
        return waiting

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
        turn = Turn(
            messages=request.messages[known:],
            tools=request.tools,
            stop_strings=request.stop,
            after=after,
            most_tokens=request.most_tokens,
        )
        return StreamedTurn(**vars(turn), hear=self._taken.hear) if request.stream else turn

    def answer(self, reply: Reply) -> None:
        """Gives the reply to the request that was taken."""
        waiting, self._taken = self._taken, None
        assert waiting is not None, "a reply follows a request"
        if reply.refusal:
            waiting.refuse(refuse(reply.refusal, "messages"))
            return
        if reply.drawn is not None:
            said = given_message(waiting.request, reply)
            self._answered.append((*waiting.request.messages, said))
        waiting.answer(reply)

    def close(self) -> None:
        """Refuses all requests that wait, and those that come."""
        with self._lock:
            self._is_closed = True
            waiting = [*self._waiting, *([] if self._taken is None else [self._taken])]
            self._waiting.clear()
            self._taken = None
        for one in waiting:
            one.refuse(closed())

    def _place(self, messages: tuple[Message, ...]) -> tuple[int, int]:
        """Returns the longest conversation that messages continue, and the number of its own."""
        found, known = ANEW, 0
        for number, answered in enumerate(self._answered):
            # Of equal ones the last: its ids are more often still in the cache.
            if known <= len(answered) < len(messages) and messages[: len(answered)] == answered:
                found, known = number, len(answered)
        return found, known
