"""Compiles programs ahead of their first use, in background threads."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import jax

from rl_sync.roles.assembly.program_list import Listed
from rl_sync.settings.run_settings import RunSettings

_MOST_THREADS = 8
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class AheadCounts:
    """Counts of a role's programs, by the time of their compilation.

    Attributes:
      listed: number of programs to compile ahead.
      ready: number of used programs that were compiled before their first use.
      awaited: number of programs that were being compiled at their first use.
      at_need: number of listed programs whose compilation started at their first use.
      unlisted: number of used programs that were not listed.
      waited_secs: time spent waiting for the programs counted in `awaited`.
    """

    listed: int = 0
    ready: int = 0
    awaited: int = 0
    at_need: int = 0
    unlisted: int = 0
    waited_secs: float = 0.0


class Ahead:
    """Compiles the programs of a role in background threads, before they are needed.

    JAX caches the programs that are lowered and compiled here. A later call of the same function,
    with arguments of the same shapes and shardings, finds the compiled program.

    Args:
      threads: number of threads; 0 to compile every program at its first use.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "ahead") if threads else None
        self._compiled: dict[Hashable, Future[None]] = {}
        self._settled: set[Hashable] = set()
        self.counts = AheadCounts()

    def begin(self, programs: Callable[[], Iterable[Listed]]) -> None:
        """Starts to compile programs in their order, after the programs of earlier calls.

        Args:
          programs: lists the programs; not called if nothing is compiled ahead.
        """
        if self._pool is None:
            return
        for program in programs():
            if program.key not in self._compiled and program.key not in self._settled:
                self._compiled[program.key] = self._pool.submit(_compile, program)
                self.counts.listed += 1

    def settle(self, key: Hashable) -> None:
        """Waits for the thread that compiles a program, if there is one; call it before the first
        use.

        The caller compiles a program that no thread has started.

        Args:
          key: see `Listed`.
        """
        if key in self._settled:
            return
        self._settled.add(key)
        compiled = self._compiled.get(key)
        if compiled is None:
            self.counts.unlisted += 1
        elif compiled.cancel():
            self.counts.at_need += 1
        elif compiled.done():
            self.counts.ready += 1
        else:
            started = time.monotonic()
            compiled.result()
            self.counts.awaited += 1
            self.counts.waited_secs += time.monotonic() - started

    def close(self) -> None:
        """Starts no more compilations, and logs the counts. It does not wait for running ones."""
        if self._pool is None:
            return
        self._pool.shutdown(wait=False, cancel_futures=True)
        counts = self.counts
        _log.info(
            "Of %d listed programs, %d were compiled before their first use, %d were being compiled"
            " at that time (waits of %.1f s), and %d were not started. %d used programs were not"
            " listed.",
            counts.listed,
            counts.ready,
            counts.awaited,
            counts.waited_secs,
            counts.at_need,
            counts.unlisted,
        )


def _compile(program: Listed) -> None:
    """Compiles a program. A failure is logged; the program's real call will raise it again."""
    try:
        program.lower().compile()
    except Exception:
        _log.exception("The program %s could not be compiled ahead", program.key)


def ahead_of(settings: RunSettings, role: str) -> Ahead:
    """Returns the `Ahead` of a role, with the number of threads that the settings give.

    If `launch.compile_ahead` is not set, the number is half of the machine's cores on accelerators.
    On CPUs it is 0, because compiling would compete with the run for the cores. It is also 0 for
    several processes on GPUs, which compile each program together.
    """
    threads = settings.launch.compile_ahead
    if threads is None:
        platform = jax.default_backend()
        alone = platform == "tpu" or settings.processes_of(role) == 1
        cores = os.cpu_count() or 1
        threads = 0 if platform == "cpu" or not alone else min(max(1, cores // 2), _MOST_THREADS)
    return Ahead(threads)
