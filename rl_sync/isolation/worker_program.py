"""Program of a worker: prepared once, copied into each worker, and given one request at a time."""

from __future__ import annotations

import socket
from typing import Any, Protocol

from rl_sync.isolation import codec, frames

_worker: WorkerProgram | None = None
"""Program of this process if it is a worker."""


class WorkerProgram(Protocol):
    """Code that workers run.

    The process that workers are forked from creates the program, with plain data as arguments.
    """

    def prepare(self) -> None:
        """Imports what all workers need.

        Raises:
          ValueError: no worker can serve; the message says why.
        """

    def begin(self) -> str:
        """Prepares a new worker; returns the reason why it may not serve well, or an empty text."""

    def answer(self, request: object) -> Any:
        """Answers a request; an exception that it raises is an answer, too."""


def serve(channel: socket.socket, program: WorkerProgram) -> None:
    """Answers requests in a worker until its host closes the channel."""
    global _worker
    _worker = program
    channel.sendall(frames.framed(codec.encode(program.begin())))
    while (data := frames.receive(channel)) is not None:
        channel.sendall(frames.framed(_payload(program, data)))


def is_worker() -> bool:
    """Says whether this process is a worker, which runs only its program."""
    return _worker is not None


def _payload(program: WorkerProgram, data: bytes) -> bytes:
    """Returns the encoded answer to an encoded request, or the encoded error."""
    try:
        request = codec.decode_of_host(data)
    except Exception as error:
        fault = f"The worker cannot read its request: {type(error).__name__}: {error}"
        return codec.encode(ValueError(fault))
    try:
        payload = codec.encode(program.answer(request))
    except MemoryError:
        return codec.encode(MemoryError("left no memory to answer with"))
    except Exception as error:
        return codec.encode(error)
    if len(payload) > frames.MOST_BYTES:
        most = frames.MOST_BYTES >> 20
        size = f"{len(payload) >> 20} MiB, more than the {most} that are sent"
        return codec.encode(OverflowError(f"returned {size}"))
    return payload
