"""Pool of worker processes: a host takes one for an episode, or submits single requests."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from rl_sync.isolation import codec, fork_server
from rl_sync.isolation.frames import MOST_BYTES
from rl_sync.isolation.process_limits import signal_group
from rl_sync.isolation.worker import Worker, WorkerSockets

_MOST_LOSSES = 3
_END_SECS = 5.0
_STDERR = 2
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from rl_sync.isolation.fork_server import main
main(int(sys.argv[2]), sys.argv[3], sys.argv[4])
"""


class _Submitted(NamedTuple):
    data: bytes
    limit_secs: float
    answer: concurrent.futures.Future[Any]


class WorkerPool:
    """Worker processes of a program, forked as they are needed; several threads may use it.

    A worker keeps its state from `take` until it is given back. Submitted requests go to any free
    worker. When this process ends, in any way, all workers end. Workers write their output to the
    error output of this process.

    Args:
      program: the class of a `WorkerProgram`, as `module:Class`.
      arguments: its arguments, as plain data.
      name: the name of the workers' program in messages.
      workers: maximum number of workers.
      start_secs: maximum time to prepare the program, and to start a worker.
    """

    def __init__(
        self, program: str, arguments: list[Any], *, name: str, workers: int, start_secs: float
    ) -> None:
        self._program, self._arguments, self._name = program, arguments, name
        self._most, self._start_secs = workers, start_secs
        self._lock = threading.Lock()
        self._workers: set[Worker] = set()
        self._free: list[Worker] = []
        self._waiting: collections.deque[_Submitted] = collections.deque()
        self._is_closed = False
        self._starting = threading.Lock()
        self._server: _Server | None = None
        self._losses = 0

    def prepare(self) -> None:
        """Prepares the program; without this call the first worker waits for it.

        Raises:
          ValueError: the program cannot be prepared, or takes too long.
        """
        with self._starting:
            self._ready_server()

    def take(self, *, new: bool = False) -> Worker | None:
        """Takes a free worker, or starts one; returns None if all are taken.

        Args:
          new: whether to start another worker, if the maximum allows it, even if one is free.
        """
        with self._lock:
            if self._is_closed:
                return None
            while self._free and not (new and len(self._workers) < self._most):
                worker = self._free.pop()
                if not worker.is_lost:
                    return worker
                self._drop(worker)
            if len(self._workers) >= self._most:
                return None
            worker = Worker(self._fork, self._start_secs, self._note_start, self._note_loss)
            self._workers.add(worker)
            return worker

    def give_back(self, worker: Worker) -> None:
        """Gives back a worker that has no request in flight; a lost worker is dropped."""
        with self._lock:
            if worker.is_lost:
                self._drop(worker)
            elif worker in self._workers:
                self._free.append(worker)
        self._hand_out()

    def retire(self, worker: Worker) -> None:
        """Kills a taken worker and all processes that it started."""
        with self._lock:
            self._drop(worker)
        self._hand_out()

    def submit(self, data: bytes, limit_secs: float) -> concurrent.futures.Future[Any]:
        """Lets the next free worker answer an encoded request; see `Worker.ask`."""
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self._lock:
            if self._is_closed:
                answer.cancel()
                return answer
            self._waiting.append(_Submitted(data, limit_secs, answer))
        self._hand_out()
        return answer

    def start_all(self) -> list[concurrent.futures.Future[str]]:
        """Starts the maximum number of workers; returns `Worker.started` of each."""
        workers = [one for _ in range(self._most) if (one := self.take(new=True)) is not None]
        for worker in workers:
            give_back = functools.partial(self._give_back_started, worker)
            worker.started.add_done_callback(give_back)
        return [worker.started for worker in workers]

    def close(self) -> None:
        """Ends all workers; unanswered requests are cancelled."""
        with self._lock:
            self._is_closed = True
            workers, waiting = [*self._workers], [*self._waiting]
            self._waiting.clear()
            self._free.clear()
            for worker in workers:
                self._drop(worker)
        for request in waiting:
            request.answer.cancel()
        if (server := self._server) is not None:
            server.close()
        for worker in workers:
            worker.join()

    def _give_back_started(self, worker: Worker, started: concurrent.futures.Future[str]) -> None:
        del started
        self.give_back(worker)

    def _drop(self, worker: Worker) -> None:
        self._workers.discard(worker)
        worker.kill()

    def _hand_out(self) -> None:
        """Gives free workers to waiting requests, oldest first."""
        while self._waiting and (worker := self.take()) is not None:
            with self._lock:
                request = self._waiting.popleft() if self._waiting else None
            if request is None:
                self.give_back(worker)
                return
            answer = worker.ask(request.data, request.limit_secs)
            answer.add_done_callback(functools.partial(self._take_answer, worker, request))

    def _take_answer(
        self, worker: Worker, request: _Submitted, answer: concurrent.futures.Future[Any]
    ) -> None:
        self.give_back(worker)
        if (error := answer.exception()) is not None:
            request.answer.set_exception(error)
        else:
            request.answer.set_result(answer.result())

    def _fork(self) -> WorkerSockets:
        """Starts a worker's process.

        Raises:
          RuntimeError: the process that forks workers ended repeatedly.
          ValueError: the program can no longer be prepared.
        """
        ours, theirs = socket.socketpair()
        lifeline, servers_end = socket.socketpair()
        descriptors = [theirs.fileno(), servers_end.fileno()]
        with theirs, servers_end, self._starting, contextlib.ExitStack() as unless_sent:
            unless_sent.callback(ours.close)
            unless_sent.callback(lifeline.close)
            while True:
                server = self._ready_server()
                try:
                    socket.send_fds(server.control, [fork_server.FORK], descriptors)
                except OSError:
                    server.close()
                    continue
                unless_sent.pop_all()
                return WorkerSockets(ours, lifeline)

    def _ready_server(self) -> _Server:
        if self._server is not None and self._server.has_ended:
            self._server.close()
            self._server = None
            self._losses += 1
        if self._losses > _MOST_LOSSES:
            raise RuntimeError(
                f"The process that starts workers of {self._name!r} ended {self._losses} times"
                " in a row. The error output may say why; the code in a worker may kill its parent."
            )
        if self._server is None:
            self._server = server = _Server(self._program, self._arguments)
            try:
                if self._is_closed:
                    raise RuntimeError(f"The workers of {self._name!r} have been closed.")
                server.wait_until_ready(self._name, self._start_secs)
            except BaseException:
                self._server = None
                server.close()
                raise
        return self._server

    def _note_start(self) -> None:
        self._losses = 0

    def _note_loss(self) -> None:
        """Waits for the end of the server, after a worker has noticed that it ends."""
        if (server := self._server) is not None:
            server.await_end()


class _Server:
    """The pool's side of the fork server."""

    def __init__(self, program: str, arguments: list[Any]) -> None:
        self.control, theirs = socket.socketpair()
        given = [json.dumps(sys.path), str(theirs.fileno()), program, json.dumps(arguments)]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *given],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                # The host handles a terminal's Ctrl-C.
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        """Says whether the process has ended."""
        return self._process.poll() is not None

    def await_end(self) -> None:
        """Waits for the end of the process, which is about to end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECS)

    def wait_until_ready(self, name: str, start_secs: float) -> None:
        """Waits until the program is prepared.

        Raises:
          ValueError: the program cannot be prepared, or takes too long.
        """
        deadline = time.monotonic() + start_secs
        received, size = bytearray(), fork_server.STARTED.size
        while len(received) < size:
            left = deadline - time.monotonic()
            if left <= 0 or not wait([self.control], left):
                raise ValueError(
                    f"Preparing {name!r} took longer than start_secs={start_secs:g}. Raise"
                    " start_secs, or let the module do less when it is imported."
                )
            chunk = self.control.recv(size - len(received))
            if not chunk:
                self.await_end()
                raise ValueError(
                    f"The process that prepares {name!r} ended with exit code"
                    f" {self._process.poll()}; its error output says why."
                )
            received += chunk
            if len(received) == fork_server.STARTED.size:
                size += fork_server.STARTED.unpack(received)[0]
        if fault := received[fork_server.STARTED.size :].decode(errors="replace"):
            raise ValueError(fault)

    def close(self) -> None:
        """Ends the process and all its workers."""
        with contextlib.suppress(OSError):  # Another thread may be waiting for the socket.
            self.control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_END_SECS)
        except subprocess.TimeoutExpired:
            signal_group(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self.control.close()


def encoded(request: object, what: str) -> bytes:
    """Encodes a request for a worker.

    Args:
      what: the request's name in messages.

    Raises:
      ValueError: a part of the request cannot be sent, or it is too long.
    """
    try:
        data = codec.encode_for_worker(request)
    except Exception as error:
        raise ValueError(
            f"{what} cannot be sent to a worker: {type(error).__name__}: {error}"
        ) from error
    if len(data) > MOST_BYTES:
        raise ValueError(
            f"{what} has {len(data) >> 20} MiB, more than the {MOST_BYTES >> 20} MiB that are sent"
            " to a worker: let it name a file instead."
        )
    return data
