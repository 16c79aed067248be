"""Reward models in processes of their own, so that judging does not block the caller."""

from __future__ import annotations

import concurrent.futures
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence

from rl_sync.rewards.router import RewardRequest, RewardRouter

_PR_SET_PDEATHSIG = 1


class RewardPool:
    """Distributes requests to worker processes that judge; they end when this process ends.

    Args:
      workers: the number of processes; with 0 the caller's thread judges.
    """

    def __init__(self, workers: int):
        self._workers, self._pool = workers, None
        # Linux considers a process's parent dead when the thread that started the process ends. So
        # one thread submits all requests, which starts the workers. It lives as long as they do.
        self._door = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="judges")
        if workers:
            # The parent has threads; a fork would copy them in the middle of their work.
            context = multiprocessing.get_context("spawn")
            self._pool = concurrent.futures.ProcessPoolExecutor(
                workers, mp_context=context, initializer=_end_with_parent
            )

    def judge(self, requests: Sequence[RewardRequest]) -> list[float]:
        """Returns rewards in the order of the requests.

        Raises:
          ValueError: a reward model is unknown.
          BrokenProcessPool: a worker died.
        """
        if (pool := self._pool) is None or not requests:
            return RewardRouter().judge(requests)
        size = -(-len(requests) // self._workers)
        shares = [requests[i : i + size] for i in range(0, len(requests), size)]
        handed_in = self._door.submit(lambda: [pool.submit(_judge, share) for share in shares])
        return [reward for judged in handed_in.result() for reward in judged.result()]

    def close(self) -> None:
        """Ends the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._door.shutdown()


def _judge(requests: Sequence[RewardRequest]) -> list[float]:
    return RewardRouter().judge(requests)


def _end_with_parent() -> None:
    """Makes this worker process end when its parent ends, in whatever way that happens."""
    if sys.platform == "linux":
        # A judge may hold the interpreter's lock, so that no thread of ours can run.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_follow_parent, name="lifeline", daemon=True).start()


def _follow_parent() -> None:
    """Ends the process when the parent's end of a pipe closes; no other process holds that end."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a judge is started by a pool"
    parent.join()
    os._exit(0)
