"""Programs compiled ahead of need, in background threads."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import jax

from rl_sync.roles.program_list import Listed
from rl_sync.settings.run_settings import RunSettings

_MOST_THREADS = 8
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class AheadCounts:
    """Counts of the programs of a role, by the moment at which they were compiled.

    Attributes:
      listed: programs that were to be compiled ahead.
      ready: of those that were needed, the ones that were compiled by then.
      awaited: those that were being compiled when they were needed.
      at_need: those that were listed, but whose compilation began when they were needed.
      unlisted: those that were not listed.
      waited_secs: the time for which those awaited were waited for.
    """

    listed: int = 0
    ready: int = 0
    awaited: int = 0
    at_need: int = 0
    unlisted: int = 0
    waited_secs: float = 0.0


class Ahead:
    """Compiles the programs of a role in background threads, before they are needed.

    JAX keeps what is lowered and compiled here. A later call of the same function, with arguments
    of the same shapes and shardings, finds it and compiles nothing.

    Args:
      threads: their number; 0 to compile everything when it is needed.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "ahead") if threads else None
        self._compiled: dict[Hashable, Future[None]] = {}
        self._settled: set[Hashable] = set()
        self.counts = AheadCounts()

    def begin(self, programs: Callable[[], Iterable[Listed]]) -> None:
        """Begins to compile programs in their order, after those of earlier calls.

        Args:
          programs: lists them; is not called where nothing is compiled ahead.
        """
        if self._pool is None:
            return
        for program in programs():
            if program.key not in self._compiled and program.key not in self._settled:
                self._compiled[program.key] = self._pool.submit(_compile, program)
                self.counts.listed += 1

    def settle(self, key: Hashable) -> None:
        """Is called before a program's first call: waits for the thread that compiles it, if any.

        A program that no thread has begun is left to the caller.

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
        """Begins no more; logs the counts. What a thread is compiling is not waited for."""
        if self._pool is None:
            return
        self._pool.shutdown(wait=False, cancel_futures=True)
        counts = self.counts
        _log.info(
            "Of %d programs that were listed, %d were compiled when they were needed, %d were being"
            " compiled (waits of %.1f s), and %d were not begun. %d others were needed.",
            counts.listed,
            counts.ready,
            counts.awaited,
            counts.waited_secs,
            counts.at_need,
            counts.unlisted,
        )


def _compile(program: Listed) -> None:
    """Compiles a program. A failure is logged; the program's real call meets it again."""
    try:
        program.lower().compile()
    except Exception:
        _log.exception("The program %s could not be compiled ahead", program.key)


def ahead_of(settings: RunSettings, role: str) -> Ahead:
    """Returns what compiles a role's programs ahead, with as many threads as the settings say.

    Unless `launch.compile_ahead` is set, those are half of the machine's cores on accelerators. On
    CPUs there are none: compiling would compete with the run for the cores. Nor are there any for
    several processes on GPUs, which compile each program together.
    """
    threads = settings.launch.compile_ahead
    if threads is None:
        platform = jax.default_backend()
        alone = platform == "tpu" or settings.processes_of(role) == 1
        cores = os.cpu_count() or 1
        threads = 0 if platform == "cpu" or not alone else min(max(1, cores // 2), _MOST_THREADS)
    return Ahead(threads)
