"""Program of workers that host one episode's environment at a time."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from rl_sync.environments.hosts.construction import Construction
from rl_sync.environments.hosts.guarded import Guarded
from rl_sync.environments.hosts.host import Failure, Result
from rl_sync.environments.interface import Reply
from rl_sync.environments.opponents import Seating
from rl_sync.isolation import process_limits
from rl_sync.isolation.codec import record

_SEEDS = 1 << 32  # NumPy's global generator takes 32 bits.
_MUST_NOT_BE_COPIED = ("jax", "jaxlib")


@record
class ResetEnvironment(NamedTuple):
    """Asks for an environment and its first turn, with the players if it is a game of several."""

    task: Mapping[str, Any]
    seed: int
    seating: Seating | None = None


@record
class StepEnvironment(NamedTuple):
    """Asks for the environment's answer to a reply."""

    reply: Reply


@record
class CloseEnvironment(NamedTuple):
    """Asks to close the environment."""


@record
class Closed(NamedTuple):
    """Answer to `CloseEnvironment`.

    Attributes:
      fault: fault of the environment's `close`, or an empty text.
      is_worn: whether the episode left something in the process that could affect the next one.
    """

    fault: str
    is_worn: bool


Request = ResetEnvironment | StepEnvironment | CloseEnvironment
Method = Literal["reset", "step", "close"]


class EpisodeWorker:
    """An environment and its event loop; both are new in each episode.

    Args:
      reference: the environment.
      memory_bytes: additional address space of an episode; 0 for no limit.
    """

    def __init__(self, reference: str, memory_bytes: int) -> None:
        self._reference, self._memory_bytes = reference, memory_bytes
        self._construction: Construction | None = None
        self._runner: asyncio.Runner | None = None
        self._guarded: Guarded | None = None
        self._is_worn = False

    def prepare(self) -> None:
        """Imports the environment, and modules that a worker needs for its first episode.

        Raises:
          ValueError: it cannot be imported, or imports JAX.
        """
        self._construction = Construction.of(self._reference)
        self._construction.check()
        self._construction.warm_up()
        _seed_globals(0)  # NumPy imports its generators only when they are used.
        with asyncio.Runner() as runner:
            runner.get_loop()
        copied = [name for name in _MUST_NOT_BE_COPIED if name in sys.modules]
        if copied:
            raise ValueError(
                f"{self._reference!r} imports {copied[0]} with its module. Workers are copies of"
                f" the process that imported it, and the state of {copied[0]} must not be copied:"
                " import it inside the methods that need it."
            )

    def begin(self) -> str:
        """Limits the memory of a new worker."""
        if self._memory_bytes:
            process_limits.limit_memory(process_limits.address_space_bytes() + self._memory_bytes)
        return ""

    def answer(self, request: Request) -> Result | Closed:
        """Returns the environment's answer to a request, or why there is none."""
        assert self._construction is not None, "a program is prepared first"
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
        """Records if memory ran out, after which libraries may be in any state."""
        self._is_worn |= isinstance(result, Failure) and result.kind == "memory"
        return result

    def _closed(self, guarded: Guarded) -> Closed:
        failure = guarded.close()
        if self._runner is not None:
            self._runner.close()
        self._guarded = self._runner = None
        # Threads that the episode left would continue beside the next one.
        return Closed(failure.why if failure else "", self._is_worn or threading.active_count() > 1)


def _seed_globals(seed: int) -> None:
    """Seeds the global generators, so that all random numbers of an episode depend on its seed."""
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % _SEEDS)
