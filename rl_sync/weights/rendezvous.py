"""Rendezvous: both sides agree on a collective transfer before it, as nothing can interrupt it.

An explorer asks for a version. When the trainer has it, it grants, and both enter the transfer.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from rl_sync.weights.ends_interface import wanted_text


class Request(NamedTuple):
    """Request of an explorer that is ready to receive weights.

    Attributes:
      explorer: its number, from 1.
      ticket: a number that distinguishes this request from the explorer's earlier ones.
      exactly, at_least: the wanted version, as in `interface.Puller.pull`.
    """

    explorer: int
    ticket: int
    exactly: int | None
    at_least: int | None

    def accepts(self, version: int) -> bool:
        """Says whether the explorer can use a version."""
        return version >= (self.at_least or 0) if self.exactly is None else version == self.exactly


class Grant(NamedTuple):
    """Promise of the trainer to enter the transfer of a version now, with the version's digest."""

    version: int
    digest: str


class MeetingPoint:
    """The place of requests and grants, in one process and safe to call from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets = 0
        self._requests: dict[int, Request] = {}
        self._grants: dict[int, Grant] = {}

    def ask(self, explorer: int, exactly: int | None, at_least: int | None) -> int:
        """Registers a request, in place of the explorer's earlier one; returns its ticket.

        Raises:
          ValueError: both `exactly` and `at_least` are given.
        """
        wanted_text(exactly, at_least)
        with self._changed:
            self._tickets += 1
            self._requests.pop(explorer, None)
            self._requests[explorer] = Request(explorer, self._tickets, exactly, at_least)
            self._changed.notify_all()
            return self._tickets

    def granted(self, ticket: int, timeout_secs: float) -> Grant | None:
        """Waits for the grant of a ticket and returns it, once; None if there is none in time.

        After a grant the explorer must enter the transfer.
        """
        with self._changed:
            self._changed.wait_for(lambda: ticket in self._grants, timeout_secs)
            return self._grants.pop(ticket, None)

    def withdraw(self, ticket: int) -> Grant | None:
        """Withdraws a request, or returns its grant if that came first and must be followed."""
        with self._changed:
            for explorer, request in list(self._requests.items()):
                if request.ticket == ticket:
                    del self._requests[explorer]
            return self._grants.pop(ticket, None)

    def waiting(self, timeout_secs: float) -> list[Request]:
        """Returns the requests of waiting explorers, in the order of arrival; waits for a first."""
        with self._changed:
            self._changed.wait_for(lambda: self._requests, timeout_secs)
            return sorted(self._requests.values(), key=lambda request: request.ticket)

    def grant(self, request: Request, version: int, digest: str) -> bool:
        """Grants a request; after True the trainer must enter the transfer with that explorer.

        Returns False if the explorer has withdrawn the request.
        """
        with self._changed:
            current = self._requests.get(request.explorer)
            if current is None or current.ticket != request.ticket:
                return False
            del self._requests[request.explorer]
            self._grants[request.ticket] = Grant(version, digest)
            self._changed.notify_all()
            return True
