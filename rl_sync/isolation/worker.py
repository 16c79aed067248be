"""The host's side of a worker: a process that answers one request at a time."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from rl_sync.isolation import codec, fork_server, frames
from rl_sync.isolation.process_limits import end_in_words

_CHUNK_BYTES = 1 << 18
_LAST_WORDS_SECS = 1.0
"""Maximum seconds from the end of a worker's channel to the report of how the worker ended."""
_JOIN_SECS = 5.0
_KILLED = "was killed by its host"

LossKind = Literal["died", "start", "time-out", "slow answer", "nonsense"]


class WorkerLostError(Exception):
    """Raised when a worker has ended; its text is a predicate that says how.

    Attributes:
      kind: `died`: its process ended; `start`: it took too long to start; `time-out`: it began no
        answer in time; `slow answer`: an answer began but took too long to arrive;
        `nonsense`: it sent something other than an answer.
    """

    def __init__(self, kind: LossKind, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class WorkerSockets(NamedTuple):
    """A host's ends of the sockets to a worker.

    Attributes:
      channel: carries requests and answers.
      lifeline: carries the worker's end; the worker is killed when this end is closed.
    """

    channel: socket.socket
    lifeline: socket.socket


class _Question(NamedTuple):
    data: bytes
    limit_secs: float
    answer: concurrent.futures.Future[Any]


class Worker:
    """A worker process, and a thread that waits for its answers.

    The thread reads an answer when it arrives, even if its future is read much later. The first
    request waits until the worker has started. The time limit of a request starts when it is sent.

    Args:
      fork: starts the process.
      start_secs: maximum time to start.
      on_start, on_lost_server: called when the worker has started, and when the process that forked
        it has ended.

    Attributes:
      started: once it has started, the reason why it may not serve well, or an empty text.
    """

    def __init__(
        self,
        fork: Callable[[], WorkerSockets],
        start_secs: float,
        on_start: Callable[[], None],
        on_lost_server: Callable[[], None],
    ) -> None:
        self._fork, self._start_secs = fork, start_secs
        self._on_start, self._on_lost_server = on_start, on_lost_server
        self._sockets: WorkerSockets | None = None
        self._inbox = bytearray()
        self._asked: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_killed = False
        self.started: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Says whether the process is known to have ended, or is about to be killed."""
        if self._is_killed or (self.started.done() and self.started.exception() is not None):
            return True
        with self._lock:
            return self._sockets is not None and _is_at_end(self._sockets)

    def ask(self, data: bytes, limit_secs: float) -> concurrent.futures.Future[Any]:
        """Sends an encoded request to a worker that has no other request in flight.

        Returns:
          A future of the answer: a value, or an exception if the worker could not answer. Waiting
          for it raises `WorkerLostError` if the worker ends, `RuntimeError` if it cannot be
          started, and `ValueError` if its program cannot be prepared.
        """
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self._lock:
            if not self._is_killed:
                self._asked.put(_Question(data, limit_secs, answer))
                return answer
        answer.set_exception(WorkerLostError("died", _KILLED))
        return answer

    def kill(self) -> None:
        """Kills the process, its group, and all that it started; its thread ends by itself."""
        with self._lock:
            self._is_killed = True
            if self._sockets is not None:
                with contextlib.suppress(OSError):
                    # The thread may wait for this socket, and closes it.
                    self._sockets.lifeline.shutdown(socket.SHUT_RDWR)
            self._asked.put(None)

    def join(self) -> None:
        """Waits until the thread of a killed worker has ended."""
        self._thread.join(_JOIN_SECS)

    def _run(self) -> None:
        lost: BaseException | None = None
        try:
            self.started.set_result(self._start())
            self._on_start()
        except BaseException as error:
            self.started.set_exception(lost := error)
        while (asked := self._asked.get()) is not None:
            if lost is None:
                try:
                    asked.answer.set_result(self._answer(asked.data, asked.limit_secs))
                    continue
                except BaseException as error:
                    lost = error
            self.kill()
            asked.answer.set_exception(lost)
        with self._lock:
            if self._sockets is not None:
                for one in self._sockets:
                    one.close()
                self._sockets = None

    def _start(self) -> str:
        sockets = self._fork()
        with self._lock:
            self._sockets = sockets
        if self._is_killed:
            raise WorkerLostError("died", _KILLED)
        data, _ = self._receive(self._start_secs)
        if data is None:
            late = f"took longer than start_secs={self._start_secs:g} to start"
            raise WorkerLostError("start", late)
        return str(self._decoded(data))

    def _answer(self, data: bytes, limit_secs: float) -> Any:
        assert self._sockets is not None, "it has started"
        channel = self._sockets.channel
        if self._inbox or _readable(self._sockets, 0.0):
            if not self._inbox and not self._chunk(channel):
                raise self._end()
            raise WorkerLostError("nonsense", "answered what nobody had asked")
        deadline = time.monotonic() + limit_secs
        channel.settimeout(limit_secs)
        try:
            channel.sendall(frames.framed(data))
        except TimeoutError:
            raise WorkerLostError("time-out", f"did not answer within {limit_secs:g} s") from None
        except OSError:
            pass  # The worker closed its end; what it sent before can still be read.
        payload, has_begun = self._receive(deadline - time.monotonic(), limit_secs)
        if payload is not None:
            return self._decoded(payload)
        if has_begun:
            late = f"took longer than {limit_secs:g} s to send its answer"
            raise WorkerLostError("slow answer", late)
        raise WorkerLostError("time-out", f"did not answer within {limit_secs:g} s")

    def _receive(self, secs: float, more_secs: float = 0.0) -> tuple[bytes | None, bool]:
        """Waits for a frame; returns its payload, if it came in time, and whether it has begun.

        Args:
          secs: maximum time until its first part.
          more_secs: maximum time for the rest.

        Raises:
          WorkerLostError: the worker ended or sent something invalid.
        """
        assert self._sockets is not None, "it was forked"
        channel, lifeline = self._sockets
        deadline, has_begun = time.monotonic() + secs, False
        while True:
            try:
                payload = frames.take(self._inbox)
            except ValueError as error:
                raise WorkerLostError("nonsense", str(error)) from None
            if payload is not None:
                return payload, True
            ready = _readable(self._sockets, deadline - time.monotonic())
            if channel in ready:
                chunk = self._chunk(channel)
                if not chunk:
                    raise self._end()
                self._inbox += chunk
                if not has_begun:
                    has_begun, deadline = True, time.monotonic() + more_secs
            elif lifeline in ready:
                raise self._end()
            else:
                return None, has_begun

    def _chunk(self, channel: socket.socket) -> bytes:
        try:
            return channel.recv(_CHUNK_BYTES)
        except OSError:
            return b""

    def _end(self) -> WorkerLostError:
        """Waits for the report of how the worker ended."""
        assert self._sockets is not None, "it was forked"
        lifeline = self._sockets.lifeline
        lifeline.settimeout(_LAST_WORDS_SECS)
        try:
            data = lifeline.recv(fork_server.END.size, socket.MSG_WAITALL)
        except TimeoutError:
            return WorkerLostError("died", "closed the channel to the host")
        except OSError:
            data = b""
        if self._is_killed:
            return WorkerLostError("died", _KILLED)
        if len(data) < fork_server.END.size:
            self._on_lost_server()
            return WorkerLostError("died", "ended with the process that had started it")
        kind, value = fork_server.END.unpack(data)
        if kind == fork_server.NOT_FORKED:
            return WorkerLostError("died", f"could not be started: {os.strerror(value)}")
        return WorkerLostError("died", end_in_words(value))

    def _decoded(self, payload: bytes) -> Any:
        try:
            return codec.decode(payload)
        except Exception as error:
            why = f"sent bytes that are no record: {error}"
            raise WorkerLostError("nonsense", why) from None


def _is_at_end(sockets: WorkerSockets) -> bool:
    """Says whether the worker has ended: its channel is closed, or the lifeline has a report."""
    ready = _readable(sockets, 0.0)
    if sockets.lifeline in ready:
        return True
    try:
        return sockets.channel in ready and not sockets.channel.recv(1, socket.MSG_PEEK)
    except OSError:  # The worker ended with a request unread.
        return True


def _readable(sockets: Sequence[socket.socket], timeout_secs: float) -> list[socket.socket]:
    """Waits until a socket can be read or is at its end; returns all such sockets."""
    poll = select.poll()
    for one in sockets:
        poll.register(one, select.POLLIN)
    found = {descriptor for descriptor, _ in poll.poll(max(0, math.ceil(timeout_secs * 1000)))}
    return [one for one in sockets if one.fileno() in found]
