"""Forks of a server process, as its host sees them: started, killed, and reported when they end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import NamedTuple

from rl_sync.environments.hosts import fork_server as server

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from rl_sync.environments.hosts.fork_server import main
main(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
"""
_END_SECS = 5.0
_STDERR = 2


class ServerLostError(Exception):
    """The fork server has ended, and its workers with it."""


class Ended(NamedTuple):
    """The end of a worker, in words."""

    number: int
    why: str


class Forks:
    """A fork server that has imported an environment.

    Workers write their output to the error output of this process.

    Args:
      reference: the environment.
      memory_bytes: address space that an episode may add; 0 for no limit.
      start_secs: the longest wait for the import.

    Raises:
      ValueError: the environment cannot be imported, or takes too long.
    """

    def __init__(self, reference: str, memory_bytes: int, start_secs: float) -> None:
        self._control, theirs = socket.socketpair()
        arguments = [json.dumps(sys.path), str(theirs.fileno()), reference, str(memory_bytes)]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                # A terminal's Ctrl-C is the host's matter.
                start_new_session=True,
            )
        self._received = bytearray()
        try:
            fault = self._started(reference, start_secs)
            if fault:
                raise ValueError(fault)
        except BaseException:
            self.close()
            raise

    @property
    def control(self) -> socket.socket:
        """The socket that is readable when a worker has ended."""
        return self._control

    def fork(self, number: int) -> socket.socket:
        """Starts a worker and returns the socket to it.

        Raises:
          ServerLostError: the server has ended.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            self._command(server.FORK, number, theirs)
        return ours

    def kill(self, number: int) -> None:
        """Kills a worker, its process group, and all that it started.

        Raises:
          ServerLostError: the server has ended.
        """
        self._command(server.KILL, number)

    def ended(self) -> list[Ended]:
        """Returns the workers that have ended, each once, without waiting.

        Raises:
          ServerLostError: the server has ended.
        """
        try:
            data = self._control.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ServerLostError from error
        if not data:
            raise ServerLostError
        self._received += data
        whole = len(self._received) // server.EVENT.size * server.EVENT.size
        events = [*server.EVENT.iter_unpack(bytes(self._received[:whole]))]
        del self._received[:whole]
        return [Ended(number, _why(kind, value)) for kind, number, value in events]

    def close(self) -> None:
        """Ends the server and all its workers."""
        self._control.close()
        try:
            self._process.wait(_END_SECS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _command(self, command: bytes, number: int, channel: socket.socket | None = None) -> None:
        descriptors = [] if channel is None else [channel.fileno()]
        try:
            socket.send_fds(self._control, [server.COMMAND.pack(command, number)], descriptors)
        except OSError as error:
            raise ServerLostError from error

    def _started(self, reference: str, start_secs: float) -> str:
        """Waits for the server; returns why it cannot serve, or an empty text."""
        deadline = time.monotonic() + start_secs
        late = (
            f"Importing the environment {reference!r} took longer than start_secs={start_secs:g}."
            " Raise start_secs, or let the module do less when it is imported."
        )
        received = bytearray()
        while len(received) < (size := _announced(received)):
            left = deadline - time.monotonic()
            if left <= 0 or not server.readable([self._control], left):
                return late
            chunk = self._control.recv(size - len(received))
            if not chunk:
                return (
                    f"The process that imports the environment {reference!r} ended with exit code"
                    f" {self._process.wait(_END_SECS)}; its error output says why."
                )
            received += chunk
        return received[server.STARTED.size :].decode(errors="replace")


def _announced(received: bytearray) -> int:
    """Returns the bytes of the server's first message, as far as it is known."""
    size = server.STARTED.size
    if len(received) < size:
        return size
    return size + server.STARTED.unpack(received[:size])[0]


def _why(kind: bytes, value: int) -> str:
    if kind == server.NOT_FORKED:
        return f"could not be started: {os.strerror(value)}"
    if value >= 0:
        return f"ended with exit code {value}"
    try:
        name = signal.Signals(-value).name
    except ValueError:
        name = f"signal {-value}"
    hint = ", as the system does where memory runs out" if -value == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
