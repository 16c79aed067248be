"""The stream on which items go to one table of a server, and their confirmations come back."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import grpc

from rl_sync.replay import reverb_pb2

OpenStream = Callable[[Iterator[bytes]], Any]
"""From serialized InsertStreamRequests to the call, an iterator of InsertStreamResponses."""


class InsertStream:
    """Sends items, and knows which of them the server has not confirmed yet.

    gRPC takes requests from one thread of its own; another one, of ours, reads confirmations.
    """

    def __init__(self, open_stream: OpenStream) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._pending: set[int] = set()
        self._error: grpc.RpcError | None = None
        self._call = open_stream(iter(self._requests.get, None))
        self._reader = threading.Thread(
            target=self._read_confirmations, name="replay-confirmations", daemon=True
        )
        self._reader.start()

    @property
    def error(self) -> grpc.RpcError | None:
        """What ended the stream, or None while it lives."""
        return self._error

    def send(self, request: bytes, keys: Collection[int]) -> None:
        """Sends a serialized request whose items have these keys."""
        with self._changed:
            self._pending.update(keys)
        self._requests.put(request)

    def unconfirmed(self, keys: Collection[int] | None = None) -> int:
        """Returns how many of the items (None: of all) are not confirmed."""
        with self._changed:
            return len(self._pending if keys is None else self._pending.intersection(keys))

    def wait(self, keys: Collection[int] | None, deadline: float) -> bool:
        """Waits until the server has confirmed the items, or all items.

        Args:
          keys: of the items; None for all.
          deadline: on `time.monotonic()`'s clock.

        Returns:
          Whether it has, by the deadline.

        Raises:
          grpc.RpcError: the stream ended first.
        """

        def settled() -> bool:
            waiting = self._pending if keys is None else not self._pending.isdisjoint(keys)
            return not waiting or self._error is not None

        with self._changed:
            done = self._changed.wait_for(settled, timeout=max(0.0, deadline - time.monotonic()))
            if self._error is not None:
                raise self._error
            return done

    def close(self, timeout_secs: float = 5.0) -> None:
        """Ends the stream; what has not been confirmed is left to the server."""
        self._requests.put(None)
        if self._pending:
            self._call.cancel()
        self._reader.join(timeout_secs)
        self._call.cancel()

    def _read_confirmations(self) -> None:
        try:
            for response in self._call:
                self._confirm(response)
            error: grpc.RpcError = StreamEnded()
        except grpc.RpcError as rpc_error:
            error = rpc_error
        with self._changed:
            self._error = error
            self._changed.notify_all()
        self._requests.put(None)

    def _confirm(self, response: reverb_pb2.InsertStreamResponse) -> None:
        with self._changed:
            self._pending.difference_update(response.keys)
            self._changed.notify_all()


class StreamEnded(grpc.RpcError):
    """The server ended the stream in good order, which it does when it shuts down."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the server ended the stream"
