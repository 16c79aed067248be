"""The stream that sends items to one table of a server, and receives their confirmations."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import grpc

from rl_sync.replay import reverb_pb2

OpenStream = Callable[[Iterator[bytes], Callable[[bytes], bytes]], grpc.Call]
"""A function that opens a stream. Its arguments are serialized InsertStreamRequests, and a function
for each serialized InsertStreamResponse as it arrives. It returns the call, an iterator of that
function's results.
"""


class Ticket:
    """Confirmations of the items of one request.

    Attributes:
      unconfirmed: the number of items that the server has not confirmed.
    """

    def __init__(self, count: int) -> None:
        self.unconfirmed = count
        # Held while items are unconfirmed. It is a plain lock, since a Condition would wake up the
        # waiter before it can continue.
        self._waiting = threading.Lock()
        self._waiting.acquire()

    def confirm_one(self) -> None:
        """Counts a confirmation."""
        self.unconfirmed -= 1
        if not self.unconfirmed:
            self._waiting.release()

    def give_up(self) -> None:
        """Ends the wait before all items are confirmed."""
        self._waiting.release()

    def wait(self, deadline: float) -> bool:
        """Waits for the last confirmation; returns whether the wait ended by the deadline."""
        if not self._waiting.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        self._waiting.release()
        return True


class InsertStream:
    """Sends items, and tracks those that the server has not confirmed yet.

    gRPC takes requests in one of its threads, and deserializes confirmations in another. We process
    confirmations in this second thread, because waking up a third one would take time. Our own
    thread only asks gRPC for more.
    """

    def __init__(self, open_stream: OpenStream) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending: dict[int, Ticket] = {}
        self._error: grpc.RpcError | None = None
        self._call = open_stream(iter(self._requests.get, None), self._confirm)
        self._reader = threading.Thread(
            target=self._ask_for_confirmations, name="replay-confirmations", daemon=True
        )
        self._reader.start()

    @property
    def error(self) -> grpc.RpcError | None:
        """The error that ended the stream; None while it is open."""
        return self._error

    def send(self, request: bytes, keys: Collection[int]) -> Ticket:
        """Sends a serialized request whose items have these keys."""
        ticket = Ticket(len(keys))
        with self._lock:
            self._pending.update(dict.fromkeys(keys, ticket))
            if self._error is not None:
                ticket.give_up()
        self._requests.put(request)
        return ticket

    def outstanding(self) -> list[Ticket]:
        """Returns the tickets of all requests that are not confirmed."""
        with self._lock:
            return list(dict.fromkeys(self._pending.values()))

    def wait(self, tickets: Sequence[Ticket], deadline: float) -> bool:
        """Waits until the server has confirmed all items of some requests.

        Args:
          tickets: the tickets of the requests.
          deadline: the deadline on `time.monotonic()`'s clock.

        Returns:
          Whether it has confirmed them by the deadline.

        Raises:
          grpc.RpcError: the stream ended first.
        """
        in_time = all(ticket.wait(deadline) for ticket in tickets)
        if in_time and any(ticket.unconfirmed for ticket in tickets):
            assert self._error is not None
            raise self._error
        return in_time

    def close(self, timeout_secs: float = 5.0) -> None:
        """Ends the stream; unconfirmed items stay with the server."""
        self._requests.put(None)
        if self._pending:
            self._call.cancel()
        self._reader.join(timeout_secs)
        self._call.cancel()

    def _ask_for_confirmations(self) -> None:
        try:
            for _ in self._call:
                pass
            error: grpc.RpcError = StreamEnded()
        except grpc.RpcError as rpc_error:
            error = rpc_error
        with self._lock:
            self._error = error
            for ticket in dict.fromkeys(self._pending.values()):
                ticket.give_up()
        self._requests.put(None)

    def _confirm(self, response: bytes) -> bytes:
        keys = reverb_pb2.InsertStreamResponse.FromString(response).keys
        with self._lock:
            tickets = [self._pending.pop(key) for key in keys if key in self._pending]
        for ticket in tickets:
            ticket.confirm_one()
        return response


class StreamEnded(grpc.RpcError):
    """The server ended the stream cleanly, as it does when it shuts down."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the server ended the stream"
