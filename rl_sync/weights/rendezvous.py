"""Rendezvous: both sides agree on a collective transfer in advance, as it cannot be interrupted.

An explorer requests a version. Once the trainer has it, the trainer grants the request, and both
enter the transfer.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from rl_sync.messages.weight_calls import Grant, Request
from rl_sync.weights.ends_interface import wanted_text


class Meeting(NamedTuple):
    """The content of a meeting point.

    Attributes:
      tickets: number of tickets so far.
      requests: open requests, in the order of arrival.
      grants: grants by their tickets, of which each explorer has at most one.
      asked: each explorer's last ticket, and the number by which a repeated request is known.
    """

    tickets: int = 0
    requests: tuple[Request, ...] = ()
    grants: Mapping[int, Grant] = MappingProxyType({})
    asked: Mapping[int, tuple[int, int | None]] = MappingProxyType({})


class MeetingPoint:
    """Exchange of requests and grants, in one process; all threads may call it.

    Every call may come again, if its answer was lost, and then gets the same answer.

    Args:
      meeting: content at the beginning.
    """

    def __init__(self, meeting: Meeting = Meeting()) -> None:  # noqa: B008
        self._changed = threading.Condition()
        self._tickets = meeting.tickets
        self._requests = {request.explorer: request for request in meeting.requests}
        self._grants, self._asked = {**meeting.grants}, {**meeting.asked}

    def content(self) -> Meeting:
        """Returns the content, from which another meeting point can begin."""
        with self._changed:
            requests = tuple(self._requests.values())
            return Meeting(self._tickets, requests, {**self._grants}, {**self._asked})

    def ask(
        self, explorer: int, exactly: int | None, at_least: int | None, number: int | None = None
    ) -> int:
        """Registers a request, which replaces the explorer's earlier one; returns its ticket.

        Args:
          number: distinguishes the request from all others of the explorer; None for a request that
            never comes again.

        Raises:
          ValueError: both `exactly` and `at_least` are given.
        """
        wanted_text(exactly, at_least)
        with self._changed:
            ticket, known = self._asked.get(explorer, (0, None))
            if number is not None and number == known:
                return ticket
            self._grants.pop(ticket, None)
            self._tickets += 1
            self._requests.pop(explorer, None)
            self._requests[explorer] = Request(explorer, self._tickets, exactly, at_least)
            self._asked[explorer] = (self._tickets, number)
            self._changed.notify_all()
            return self._tickets

    def granted(self, ticket: int, timeout_secs: float) -> Grant | None:
        """Waits for the grant of a ticket, and returns it; None if none comes in time.

        After a grant the explorer must enter the transfer.
        """
        with self._changed:
            self._changed.wait_for(lambda: ticket in self._grants, timeout_secs)
            return self._grants.get(ticket)

    def reset(self) -> None:
        """Forgets all requests and grants, since one side of the transfers has died."""
        with self._changed:
            self._requests.clear()
            self._grants.clear()

    def leave(self, explorer: int) -> None:
        """Forgets an explorer's request and grant, since it has died.

        Its request may have come after `reset`, on its way when the explorer was ended.
        """
        with self._changed:
            self._requests.pop(explorer, None)
            ticket, _ = self._asked.get(explorer, (0, None))
            self._grants.pop(ticket, None)

    def withdraw(self, ticket: int) -> Grant | None:
        """Withdraws a request; returns its grant if that came first and must be followed."""
        with self._changed:
            for explorer, request in list(self._requests.items()):
                if request.ticket == ticket:
                    del self._requests[explorer]
            return self._grants.get(ticket)

    def waiting(self, timeout_secs: float) -> list[Request]:
        """Waits for the first request, and returns all open ones in the order of arrival."""
        with self._changed:
            self._changed.wait_for(lambda: self._requests, timeout_secs)
            return sorted(self._requests.values(), key=lambda request: request.ticket)

    def grant(self, request: Request, version: int, digest: str) -> bool:
        """Grants a request; after True the trainer must enter the transfer with that explorer.

        Returns False if the explorer has withdrawn the request.
        """
        with self._changed:
            if self._grants.get(request.ticket) == Grant(version, digest):
                return True
            current = self._requests.get(request.explorer)
            if current is None or current.ticket != request.ticket:
                return False
            del self._requests[request.explorer]
            self._grants[request.ticket] = Grant(version, digest)
            self._changed.notify_all()
            return True
