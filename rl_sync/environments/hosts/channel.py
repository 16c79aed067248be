"""Host's end of a worker: frames are sent and received without waiting."""

from __future__ import annotations

import selectors
import socket

from rl_sync.environments.hosts import frames

_CHUNK_BYTES = 1 << 20


class Channel:
    """A socket to a worker, watched by a selector.

    Args:
      sock: the socket; it does not block.
      selector: watches it; its keys carry `number`.
      number: the worker's.

    Attributes:
      is_open: whether the worker's end was open when last looked at.
    """

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector, number: int) -> None:
        self._socket, self._selector, self._number = sock, selector, number
        self._inbox, self._outbox = bytearray(), bytearray()
        self._watches_room = False
        self.is_open = True
        selector.register(sock, selectors.EVENT_READ, number)

    def send(self, payload: bytes) -> None:
        """Sends a frame as far as there is room; `flush` sends the rest."""
        self._outbox += frames.framed(payload)
        self.flush()

    def flush(self) -> None:
        """Sends what waits to be sent, as far as there is room."""
        if not self.is_open:
            return
        try:
            while self._outbox:
                del self._outbox[: self._socket.send(memoryview(self._outbox)[:_CHUNK_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            # The worker's end is closed; what it has sent before can still be read.
            self._outbox.clear()
        if (waits := bool(self._outbox)) is not self._watches_room:
            self._watches_room = waits
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if waits else 0)
            self._selector.modify(self._socket, events, self._number)

    def received(self) -> list[bytes]:
        """Returns the payloads of the frames that have arrived, each once.

        Raises:
          ValueError: a frame is longer than `frames.MOST_BYTES`.
        """
        self._fill()
        payloads = []
        size = frames.LENGTH.size
        while len(self._inbox) >= size:
            (length,) = frames.LENGTH.unpack(self._inbox[:size])
            if length > frames.MOST_BYTES:
                raise ValueError(f"The worker announced {length} bytes, which is no answer.")
            if len(self._inbox) < size + length:
                break
            payloads.append(bytes(self._inbox[size : size + length]))
            del self._inbox[: size + length]
        return payloads

    def close(self) -> None:
        """Closes the socket; a worker that waits for requests then ends."""
        self._unwatch()
        self._socket.close()

    def _fill(self) -> None:
        # What lies beyond the longest frame stays in the socket, and lets the worker wait.
        while self.is_open and len(self._inbox) <= frames.MOST_BYTES:
            try:
                chunk = self._socket.recv(_CHUNK_BYTES)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self._unwatch()
                return
            self._inbox += chunk

    def _unwatch(self) -> None:
        if self.is_open:
            self._selector.unregister(self._socket)
            self.is_open = False
