"""Courier: a thread that moves bytes between channels and their sockets all the time.

A host looks for answers between chunks of tokens only, and a socket holds little. So without it a
long answer would stay with its worker, and count as late, however early it was ready.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from typing import Protocol

_log = logging.getLogger(__name__)
_ENDS = None  # The selector's key of the socket by which a courier is ended.


class Carried(Protocol):
    """Something whose bytes a courier moves."""

    number: int

    def carry(self) -> None:
        """Sends and receives what can be, without waiting."""


class SocketThread:
    """Watches sockets until it is closed; one thread at a time may call it.

    Attributes:
      bell: a socket that is readable when something was carried.

    Raises:
      RuntimeError: no thread can be started.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._heard: set[int] = set()
        self._fault: BaseException | None = None
        self.bell, self._rings = _pair()
        self._ends, self._asks_to_end = _pair()
        self._selector.register(self._ends, selectors.EVENT_READ, _ENDS)
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)
        self._thread.start()

    def watch(self, sock: socket.socket, carried: Carried, *, writes: bool = False) -> None:
        """Begins to watch a socket, or changes what it is watched for."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writes else 0)
        # A registration while another thread selects holds at once (epoll and kqueue).
        try:
            self._selector.register(sock, events, carried)
        except KeyError:
            self._selector.modify(sock, events, carried)

    def unwatch(self, sock: socket.socket) -> None:
        """Watches a socket no more."""
        self._selector.unregister(sock)

    def heard(self) -> set[int]:
        """Returns the numbers of those that something was carried of, each once.

        Raises:
          RuntimeError: the thread has ended.
        """
        with self._lock:
            with contextlib.suppress(BlockingIOError):
                self.bell.recv(1 << 10)
            heard, self._heard = self._heard, set()
        if self._fault is not None:
            raise RuntimeError(
                f"The thread that hears of environments has ended: {self._fault!r}."
            ) from self._fault
        return heard

    def close(self) -> None:
        """Ends the thread; whoever watched a socket closes it."""
        self._asks_to_end.close()
        self._thread.join()
        self._selector.close()
        for one in (self._ends, self.bell, self._rings):
            one.close()

    def _run(self) -> None:
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.data is _ENDS:
                        return
                    key.data.carry()
                    self._ring(key.data.number)
        except BaseException as error:
            _log.exception("The thread that hears of environments has ended.")
            self._fault = error
            self._ring()

    def _ring(self, *numbers: int) -> None:
        with self._lock:
            self._heard.update(numbers)
            with contextlib.suppress(BlockingIOError):  # Else it has been rung often enough.
                self._rings.send(b"!")


def _pair() -> tuple[socket.socket, socket.socket]:
    both = socket.socketpair()
    for one in both:
        one.setblocking(False)
    return both
