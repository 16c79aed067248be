"""Host's end of a worker: frames are sent and received without waiting."""

from __future__ import annotations

import socket
import threading

from rl_sync.environments.hosts import frames
from rl_sync.environments.hosts.socket_thread import SocketThread

_CHUNK_BYTES = 1 << 20
_MOST_WAITING = frames.MOST_BYTES + _CHUNK_BYTES


class Channel:
    """A socket to a worker, whose bytes a courier moves while nobody looks.

    Args:
      sock: the socket; it does not block.
      courier: watches it.
      number: the worker's.

    Attributes:
      is_open: whether the worker's end was open when last looked at.
    """

    def __init__(self, sock: socket.socket, courier: SocketThread, number: int) -> None:
        self._socket, self._courier, self.number = sock, courier, number
        self._lock = threading.Lock()
        self._inbox, self._outbox = bytearray(), bytearray()
        self._watches_room = False
        self.is_open = True
        courier.watch(sock, self)

    @property
    def is_receiving(self) -> bool:
        """Says whether a part of a frame has arrived, and not all of it."""
        return bool(self._inbox)

    def send(self, payload: bytes) -> None:
        """Sends a frame as far as there is room; the courier sends the rest."""
        with self._lock:
            self._outbox += frames.framed(payload)
            self._flush()

    def carry(self) -> None:
        """Sends what waits to be sent, and receives what has arrived."""
        with self._lock:
            self._flush()
            self._fill()

    def received(self) -> list[bytes]:
        """Returns the payloads of the frames that have arrived, each once.

        Raises:
          ValueError: a frame is longer than `frames.MOST_BYTES`.
        """
        payloads = []
        size = frames.LENGTH.size
        with self._lock:
            self._fill()
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
        with self._lock:
            self._unwatch()
            self._socket.close()

    def _flush(self) -> None:
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
            self._courier.watch(self._socket, self, writes=waits)

    def _fill(self) -> None:
        while self.is_open:
            try:
                chunk = self._socket.recv(_CHUNK_BYTES)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            # A worker that sends on behind the longest frame was asked for no such thing.
            if not chunk or len(self._inbox) > _MOST_WAITING:
                self._unwatch()
                return
            self._inbox += chunk

    def _unwatch(self) -> None:
        if self.is_open:
            self._courier.unwatch(self._socket)
            self.is_open = False
