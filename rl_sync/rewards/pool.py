"""Reward models in processes of their own, so that judging does not hold up who asks for it."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from collections.abc import Sequence

from rl_sync.rewards.router import RewardRequest, RewardRouter


class RewardPool:
    """Shares requests out to processes that judge.

    Args:
      workers: how many processes; 0 judges in the caller's thread.
    """

    def __init__(self, workers: int):
        self._workers, self._pool = workers, None
        if workers:
            # The parent has threads, which a fork would leave in the middle of things.
            context = multiprocessing.get_context("spawn")
            self._pool = concurrent.futures.ProcessPoolExecutor(workers, mp_context=context)

    def judge(self, requests: Sequence[RewardRequest]) -> list[float]:
        """Rewards in the order of the requests.

        Raises:
          ValueError: an unknown reward model.
          BrokenProcessPool: a worker died.
        """
        if self._pool is None or not requests:
            return RewardRouter().judge(requests)
        size = -(-len(requests) // self._workers)
        shares = [requests[i : i + size] for i in range(0, len(requests), size)]
        return [reward for rewards in self._pool.map(_judge, shares) for reward in rewards]

    def close(self) -> None:
        """Ends the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _judge(requests: Sequence[RewardRequest]) -> list[float]:
    return RewardRouter().judge(requests)
