"""Reward models in processes of their own, so that judging does not hold up who asks for it."""

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
    """Shares requests out to processes that judge, and that end when this process does.

    Args:
      workers: how many processes; 0 judges in the caller's thread.
    """

    def __init__(self, workers: int):
        self._workers, self._pool = workers, None
        # Linux takes a process's parent for dead when the thread that started it ends. So one
        # thread, which lives as long as they do, hands everything in, and starts them by that.
        self._door = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="judges")
        if workers:
            # The parent has threads, which a fork would leave in the middle of things.
            context = multiprocessing.get_context("spawn")
            self._pool = concurrent.futures.ProcessPoolExecutor(
                workers, mp_context=context, initializer=_end_with_parent
            )

    def judge(self, requests: Sequence[RewardRequest]) -> list[float]:
        """Rewards in the order of the requests.

        Raises:
          ValueError: an unknown reward model.
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
    """Has this process, which judges, end when the one that started it does, in whatever way."""
    if sys.platform == "linux":
        # A judge may keep the interpreter to itself, so that no thread of ours gets a turn.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_follow_parent, name="lifeline", daemon=True).start()


def _follow_parent() -> None:
    """Ends the process when a pipe closes whose other end the parent alone has."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a judge is started by a pool"
    parent.join()
    os._exit(0)
