"""Worker: hosts one episode's environment at a time in a process of its own."""

from __future__ import annotations

import asyncio
import pickle
import random
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from rl_sync.environments.hosts import frames
from rl_sync.environments.hosts.construction import Construction
from rl_sync.environments.hosts.guarded import Guarded
from rl_sync.environments.hosts.host import Failure, Result
from rl_sync.environments.hosts.plain_data import Closed, Sent, pack
from rl_sync.environments.interface import Reply
from rl_sync.environments.opponents import Seating

READY = b""
"""The payload of a worker's first frame."""

_SEEDS = 1 << 32  # NumPy's global generator takes 32 bits.


class ResetEnvironment(NamedTuple):
    """Asks for an environment and its first turn, with the players of a game of several."""

    task: Mapping[str, Any]
    seed: int
    seating: Seating | None = None


class StepEnvironment(NamedTuple):
    """Asks for the environment's answer to a reply."""

    reply: Reply


class CloseEnvironment(NamedTuple):
    """Asks to close the environment."""


Request = ResetEnvironment | StepEnvironment | CloseEnvironment
Method = Literal["reset", "step", "close"]


def warm_up() -> None:
    """Imports what a worker needs for its first episode, in the process that workers come from."""
    _seed_globals(0)  # NumPy imports its generators only when they are used.
    with asyncio.Runner() as runner:
        runner.get_loop()


def serve(channel: socket.socket, construction: Construction) -> None:
    """Answers requests until the host closes the channel."""
    worker = _Worker(construction)
    channel.sendall(frames.framed(READY))
    while (request := frames.receive(channel)) is not None:
        channel.sendall(frames.framed(_payload(worker, request)))


class _Worker:
    """An environment and its event loop; both are new in each episode."""

    def __init__(self, construction: Construction) -> None:
        self._construction = construction
        self._runner: asyncio.Runner | None = None
        self._guarded: Guarded | None = None
        self._is_worn = False

    def answer(self, request: Request) -> Sent:
        """Returns the environment's answer to a request, or why there is none."""
        if isinstance(request, ResetEnvironment):
            _seed_globals(request.seed)
            self._runner = asyncio.Runner()
            self._guarded = Guarded(self._construction, self._runner)
            return self._noted(self._guarded.reset(*request))
        assert self._guarded is not None, "a host resets an environment first"
        if isinstance(request, StepEnvironment):
            return self._noted(self._guarded.step(request.reply))
        return self._closed(self._guarded)

    def _noted(self, result: Result) -> Result:
        """Notes that memory ran out, after which libraries may be in any state."""
        self._is_worn |= isinstance(result, Failure) and result.kind == "memory"
        return result

    def _closed(self, guarded: Guarded) -> Closed:
        failure = guarded.close()
        if self._runner is not None:
            self._runner.close()
        self._guarded = self._runner = None
        # Threads that the episode left would go on beside the next one.
        return Closed(failure.why if failure else "", self._is_worn or threading.active_count() > 1)


def _payload(worker: _Worker, data: bytes) -> bytes:
    """Returns the answer to an encoded request, encoded."""
    try:
        request = pickle.loads(data)
    except Exception as error:
        fault = f"The worker cannot read its request: {type(error).__name__}: {error}"
        return pack(Failure(fault, "raised"))
    try:
        payload = pack(worker.answer(request))
    except MemoryError:
        return pack(Failure("The environment left no memory to answer with.", "memory"))
    if len(payload) > frames.MOST_BYTES:
        size = f"{len(payload) >> 20} MiB, more than the {frames.MOST_BYTES >> 20} that are sent"
        return pack(Failure(f"The environment returned {size}.", "nonsense"))
    return payload


def _seed_globals(seed: int) -> None:
    """Seeds the global generators, so that all that an episode draws depends on its seed."""
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % _SEEDS)
