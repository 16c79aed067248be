"""Judging in worker processes, each with limits of time and memory."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import functools
import logging
import math
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pebble
from pebble import ProcessExpired, ProcessFuture

from rl_sync.references import reference_of
from rl_sync.rewards.judgement import Judgement
from rl_sync.rewards.reward_settings import RewardSettings
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.rewards.waiting_room import Room

_PR_SET_PDEATHSIG = 1
_SHARE_SECS = 0.05
"""The time that a worker is given work for at once; more would leave others idle at the end."""
_MOST_REBUILDS = 3
_ENDED_WELL = 1000
"""Stands for the exit code 0 of a worker."""
_log = logging.getLogger(__name__)


class LocalScorer:
    """Judges completions in worker processes that stay warm; the caller judges by a quick reward.

    A completion that takes too long, or whose worker dies, is left unjudged. Only that worker ends,
    and another one takes its place. Workers end when this process ends.

    Args:
      reward: an expression (see `rl_sync.expression`), or a reward that other processes can import.
      settings: limits. With 0 workers the caller's thread judges.

    Attributes:
      rubric: the reward.
      judged: the number of completions that were judged so far.

    Raises:
      ValueError: the reward cannot be made.
    """

    def __init__(self, reward: str | Callable[..., Any], settings: RewardSettings | None = None):
        self._settings = settings = settings or RewardSettings()
        self.rubric = Rubric(reward)
        self._name = reward if isinstance(reward, str) else ""
        if settings.workers and not isinstance(reward, str):
            self._name = reference_of(reward)
        self._secs = _Mean()
        self._room = Room(settings.queue)
        self.judged = 0
        # Linux considers a process's parent dead when the thread that started the process ends. So
        # one thread submits all requests, which starts the workers. It lives as long as they do.
        self._door = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="judges")
        has_workers = settings.workers > 0 and not self.rubric.is_quick
        self._pool = self._new_pool() if has_workers else None
        self._begun: list[ProcessFuture[str | None]] = []
        if self._pool is not None:
            call = functools.partial(_fault_of, self._name)
            self._begun = [self._hand_in(call, None) for _ in range(settings.workers)]

    def are_prepared(self, timeout_secs: float = 0.0) -> bool:
        """Says whether the workers have prepared the reward.

        Args:
          timeout_secs: the longest wait for them.

        Raises:
          ValueError: a worker cannot prepare it.
        """
        concurrent.futures.wait(self._begun, timeout_secs)
        for one in self._begun:
            if one.done() and (fault := _outcome(one)) is not None:
                raise ValueError(f"A worker cannot prepare the reward {self._name}: {fault}")
        return all(one.done() for one in self._begun)

    def judge(
        self, items: Sequence[ScoringRequest], timeout_secs: float | None = None
    ) -> list[Judgement]:
        """Judges completions, in their order; several threads may.

        Args:
          timeout_secs: the longest wait for room in the queue.

        Raises:
          QueueTimeoutError: there was no room.
        """
        with self._room.taken(len(items), timeout_secs):
            judged = self._tried(items)
            for _ in range(self._settings.attempts - 1):
                again = [i for i, one in enumerate(judged) if not one.is_known]
                if not again:
                    break
                for i, one in zip(again, self._tried([items[i] for i in again]), strict=True):
                    judged[i] = one
            return judged

    def close(self) -> None:
        """Ends the processes."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
        self._door.shutdown()

    def _tried(self, items: Sequence[ScoringRequest]) -> list[Judgement]:
        """Judges each completion once."""
        if self._pool is None:
            judged = self.rubric.judge(items, self._settings.limit_secs)
            self.judged += len(items)
            return judged
        size = self._share(len(items))
        shares = [items[i : i + size] for i in range(0, len(items), size)]
        handed_in = [(share, self._submit(share)) for share in shares]
        return [one for share, future in handed_in for one in self._answer(share, future)]

    def _share(self, count: int) -> int:
        """Returns the number of completions that a worker is given at once."""
        fair = math.ceil(count / self._settings.workers)
        if self.rubric.in_batches:
            return max(1, min(self._settings.batch, fair))
        return max(1, min(fair, int(_SHARE_SECS / max(self._secs.value, 1e-6))))

    def _submit(
        self, share: Sequence[ScoringRequest]
    ) -> ProcessFuture[tuple[float, list[Judgement]]]:
        limit = self._settings.limit_secs
        # An asynchronous reward has its own clock for each completion.
        outer = limit * 2 if self.rubric.in_batches else limit
        return self._hand_in(functools.partial(_judge, self._name, list(share), limit), outer)

    def _hand_in(self, call: Callable[[], Any], timeout: float | None) -> ProcessFuture[Any]:
        return self._door.submit(lambda: self._schedule(call, timeout)).result()

    def _schedule(self, call: Callable[[], Any], timeout: float | None) -> ProcessFuture[Any]:
        for _ in range(_MOST_REBUILDS):
            assert self._pool is not None
            try:
                return self._pool.schedule(call, timeout=timeout)
            except RuntimeError:  # All workers were lost at once, as by lack of memory.
                self._pool = self._new_pool()
        raise RuntimeError("Workers that judge cannot be started.")

    def _answer(
        self, share: Sequence[ScoringRequest], future: ProcessFuture[Any]
    ) -> list[Judgement]:
        """Waits for a share; one that fails is judged again, completion by completion."""
        try:
            secs, judged = future.result()
        except Exception as error:  # Also what a worker could not send.
            if len(share) > 1:
                singles = [([item], self._submit([item])) for item in share]
                return [one for item, again in singles for one in self._answer(item, again)]
            self.judged += 1
            return [Judgement.unknown(self._fault(error))]
        if share:
            self._secs.add(secs / len(share))
            self.judged += len(share)
        return judged

    def _fault(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"judging took longer than reward.limit_secs={self._settings.limit_secs:g}"
        if not isinstance(error, ProcessExpired | BrokenProcessPool):
            return f"the worker that judged it failed with {type(error).__name__}: {error}"
        code = getattr(error, "exitcode", None)
        if code == _ENDED_WELL:
            code = 0
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"the worker that judged it was killed by {signal.Signals(-code).name}"
        return f"the worker that judged it ended with exit code {code}"

    def _new_pool(self) -> pebble.ProcessPool:
        return pebble.ProcessPool(
            self._settings.workers,
            initializer=_begin,
            initargs=(self._name, self._settings.memory_bytes),
            context=_Groups(),
        )


class _Mean:
    """A mean of the last values, the newest of which count most; threads may share it."""

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, value: float) -> None:
        self.value = value if not self.value else 0.8 * self.value + 0.2 * value


@functools.lru_cache(maxsize=4)
def _rubric(name: str) -> Rubric:
    return Rubric(name)


def _outcome(begun: ProcessFuture[str | None]) -> str | None:
    try:
        return begun.result()
    except (ProcessExpired, BrokenProcessPool) as error:
        return f"it has ended ({error})"


@functools.lru_cache(maxsize=4)
def _fault_of(name: str) -> str | None:
    """Prepares a worker's reward, once; returns why it cannot be."""
    try:
        _rubric(name).warm_up()
    except Exception as error:
        _log.exception("A worker could not prepare the reward %s", name)
        return f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return None


def _judge(
    name: str, items: list[ScoringRequest], limit_secs: float
) -> tuple[float, list[Judgement]]:
    """Judges in a worker, on its main thread; returns the seconds that it took, too."""
    rubric = _rubric(name)
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    # Threads of a reward may compute at the same time, and after its answer.
    allowed = used.ru_utime + used.ru_stime + (os.cpu_count() or 1) * limit_secs
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(allowed) + 1, hard))
    start = time.perf_counter()
    try:
        judged = rubric.judge(items, limit_secs)
    finally:
        _forks.end()
    return time.perf_counter() - start, judged


def _begin(name: str, memory_bytes: int) -> None:
    """Prepares a worker: its limits, its reward, and its end when its parent ends in any way."""
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    os.setpgid(0, 0)  # What a reward starts ends with its worker; see `_Leader`.
    # A judge may hold the interpreter's lock, so that no thread of ours can run.
    _end_with_parent()
    threading.Thread(target=_follow_parent, name="lifeline", daemon=True).start()
    _fault_of(name)
    _forks.watch()


class _Leader(multiprocessing.context.SpawnProcess):
    """A worker, and the group of processes that it leads: they end together."""

    def terminate(self) -> None:
        """Ends the group."""
        if not self._end_group():
            super().terminate()  # It has not come to lead one yet.

    def is_alive(self) -> bool:
        """Says whether the worker runs; if not, ends what it has left behind."""
        alive = super().is_alive()
        if not alive:
            self._end_group()
        return alive

    @property
    def exitcode(self) -> int | None:
        """The exit code; of a worker that was ended by its reward never 0.

        Pebble takes 0 for an end that it has asked for, and waits for the answer.
        """
        code = super().exitcode
        return _ENDED_WELL if code == 0 else code

    def _end_group(self) -> bool:
        assert self.pid is not None, "it was started"
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            return False
        return True


class _Groups(multiprocessing.context.SpawnContext):
    """Starts workers that lead groups, and afresh: the parent has threads, which a fork would copy
    in the middle of their work."""

    Process = _Leader


class _Forks:
    """Processes that a reward forks while it judges; they end with the judgement.

    Those of `multiprocessing` end with the worker, since a reward may keep a pool of them.
    """

    def __init__(self) -> None:
        self._pids: list[int] = []

    def watch(self) -> None:
        """Takes note of each fork from here on."""
        fork = os.fork

        def noted() -> int:
            on_main = threading.current_thread() is threading.main_thread()
            parent = os.getpid()
            if pid := fork():
                self._pids.append(pid)
            else:
                self._pids = []
                if on_main:  # Else it would end with the thread that forked it.
                    _end_with_parent()
                    if os.getppid() != parent:  # It had ended before that.
                        os._exit(0)
            return pid

        os.fork = noted

    def end(self) -> None:
        """Ends those that are left."""
        if not self._pids:
            return
        kept = {process.pid for process in multiprocessing.active_children()}
        for pid in self._pids:
            if pid not in kept:
                with contextlib.suppress(OSError):
                    # Raises where the reward has waited for it: its number may be another's now.
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        self._pids = []


_forks = _Forks()


def _end_with_parent() -> None:
    """Has the system end this process with the thread that has started it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _follow_parent() -> None:
    """Ends the process when the parent's end of a pipe closes; no other process holds that end."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a judge is started by a pool"
    parent.join()
    os._exit(0)
