"""Program of workers that judge completions by a reward."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from typing import NamedTuple

from rl_sync.isolation import process_limits
from rl_sync.isolation.codec import Records, record
from rl_sync.rewards.judgement import Judgement
from rl_sync.rewards.reward_catalog import imports_little
from rl_sync.rewards.rubric import Rubric, ScoringRequest

_log = logging.getLogger(__name__)


@record
class ScoreShare(NamedTuple):
    """Asks a worker for the judgements of completions.

    Attributes:
      limit_secs: time limit of an asynchronous reward for one completion, and CPU time limit of
        each of the worker's other threads.
    """

    items: list[ScoringRequest]
    limit_secs: float


@record
class ScoredShare(NamedTuple):
    """Judgements of completions, in their order, and the seconds that judging took."""

    judged: list[Judgement]
    secs: float


class RewardWorker:
    """Worker program that judges by a reward.

    Rewards of the package are prepared before workers are forked. A user's reward is prepared in
    each worker: its module may open files and connections, start threads, or import JAX.

    Args:
      reward: an expression.
      memory_bytes: maximum address space of a worker; 0 for no limit.
    """

    def __init__(self, reward: str, memory_bytes: int) -> None:
        self._reward, self._memory_bytes = reward, memory_bytes
        self._rubric: Rubric | None = None
        self._fault = ""
        self._forks = _Forks()

    def prepare(self) -> None:
        """Prepares a reward that may be forked."""
        if imports_little(self._reward):
            self._warm_up()

    def begin(self) -> str:
        """Limits a worker's memory and prepares its reward; returns why it cannot be prepared."""
        if self._memory_bytes:
            process_limits.limit_memory(self._memory_bytes)
        if self._rubric is None:
            self._warm_up()
        self._forks.watch()
        return self._fault

    def answer(self, request: ScoreShare) -> ScoredShare:
        """Judges on the worker's main thread.

        Raises:
          ValueError: the reward cannot be made.
        """
        rubric = self._rubric or Rubric(self._reward)
        # A reward's threads may compute at the same time, and after its answer.
        process_limits.limit_more_cpu((os.cpu_count() or 1) * request.limit_secs)
        start = time.perf_counter()
        try:
            judged = rubric.judge(request.items, request.limit_secs)
        finally:
            self._forks.end()
        return ScoredShare(Records(judged), time.perf_counter() - start)

    def _warm_up(self) -> None:
        try:
            self._rubric = Rubric(self._reward)
            self._rubric.warm_up()
        except Exception as error:
            _log.exception("A worker could not prepare the reward %s", self._reward)
            is_plain = isinstance(error, ValueError)
            self._fault = f"{error}" if is_plain else f"{type(error).__name__}: {error}"


class _Forks:
    """Tracks the processes that a reward forks while it judges, and ends them after the judgement.

    Processes of `multiprocessing` end with the worker, since a reward may keep a pool of them.
    """

    def __init__(self) -> None:
        self._pids: list[int] = []

    def watch(self) -> None:
        """Records each fork from now on."""
        fork = os.fork

        def noted() -> int:
            on_main = threading.current_thread() is threading.main_thread()
            parent = os.getpid()
            if pid := fork():
                self._pids.append(pid)
            else:
                self._pids = []
                if on_main:  # A process forked by another thread would end with that thread.
                    process_limits.end_with_parent()
                    if os.getppid() != parent:  # The parent had already ended.
                        os._exit(0)
            return pid

        os.fork = noted

    def end(self) -> None:
        """Ends the processes that still run."""
        if not self._pids:
            return
        kept = {process.pid for process in multiprocessing.active_children()}
        for pid in self._pids:
            if pid not in kept:
                with contextlib.suppress(OSError):
                    # Raises if the reward has waited for it: its pid may be another process's now.
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        self._pids = []
