"""Judging in worker processes, each with a time and a memory limit; failures are tried again."""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import Callable, Sequence
from typing import Any

from rl_sync.isolation.codec import Records
from rl_sync.isolation.worker import WorkerLostError
from rl_sync.isolation.worker_pool import WorkerPool, encoded
from rl_sync.references import reference_of
from rl_sync.rewards.judgement import Judgement
from rl_sync.rewards.reward_settings import RewardSettings
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.scoring.reward_worker import ScoredShare, ScoreShare
from rl_sync.scoring.waiting_room import Room

_PROGRAM = "rl_sync.scoring.reward_worker:RewardWorker"
_SHARE_SECS = 0.05
"""Seconds of work that a worker gets at once; more would leave other workers idle at the end."""
_START_SECS = 3600.0
"""Maximum seconds to prepare a reward, which may load or download a model."""


class LocalScorer:
    """Judges completions in worker processes that stay warm; quick rewards run in the caller.

    A completion that takes too long, or whose worker dies, is not judged. Only that worker ends,
    and another one replaces it. Workers end when this process ends.

    Args:
      reward: an expression (see `rl_sync.expression`), or a reward that other processes can import.
      settings: limits. With 0 workers the caller's thread judges.

    Attributes:
      rubric: the reward.
      judged: number of completions judged so far.

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
        self._pool: WorkerPool | None = None
        self._begun: list[concurrent.futures.Future[str]] = []
        if settings.workers > 0 and not self.rubric.is_quick:
            self._pool = WorkerPool(
                _PROGRAM,
                [self._name, settings.memory_bytes],
                name=self._name,
                workers=settings.workers,
                start_secs=_START_SECS,
            )
            self._begun = self._pool.start_all()

    def are_prepared(self, timeout_secs: float = 0.0) -> bool:
        """Says whether the workers have prepared the reward.

        Args:
          timeout_secs: maximum wait for them.

        Raises:
          ValueError: a worker cannot prepare it.
        """
        concurrent.futures.wait(self._begun, timeout_secs)
        for one in self._begun:
            if one.done() and (fault := _fault(one)):
                raise ValueError(f"A worker cannot prepare the reward {self._name}: {fault}")
        return all(one.done() for one in self._begun)

    @property
    def worker_secs(self) -> float:
        """See `rl_sync.scoring.judging.Scorer`."""
        return self._secs.value

    def judge(
        self, items: Sequence[ScoringRequest], timeout_secs: float | None = None
    ) -> list[Judgement]:
        """Judges completions, in their order; safe for several threads.

        Args:
          timeout_secs: maximum wait for room in the queue.

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
            self._pool.close()

    def _tried(self, items: Sequence[ScoringRequest]) -> list[Judgement]:
        """Judges each completion once."""
        if self._pool is None:
            judged = self.rubric.judge(items, self._settings.limit_secs)
            self.judged += len(items)
            return judged
        size = self._share(len(items))
        shares = [items[i : i + size] for i in range(0, len(items), size)]
        handed_in = [(share, self._submit(self._pool, share)) for share in shares]
        return [one for share, future in handed_in for one in self._answer(share, future)]

    def _share(self, count: int) -> int:
        """Returns the number of completions that a worker gets at once."""
        fair = math.ceil(count / self._settings.workers)
        if self.rubric.in_batches:
            return max(1, min(self._settings.batch, fair))
        return max(1, min(fair, int(_SHARE_SECS / max(self._secs.value, 1e-6))))

    def _submit(
        self, pool: WorkerPool, share: Sequence[ScoringRequest]
    ) -> concurrent.futures.Future[Any]:
        limit = self._settings.limit_secs
        try:
            data = encoded(ScoreShare(Records(share), limit), "it")
        except ValueError as error:
            refused: concurrent.futures.Future[Any] = concurrent.futures.Future()
            refused.set_result(error)
            return refused
        # An asynchronous reward has a time limit of its own for each completion.
        return pool.submit(data, limit * 2 if self.rubric.in_batches else limit)

    def _answer(
        self, share: Sequence[ScoringRequest], future: concurrent.futures.Future[Any]
    ) -> list[Judgement]:
        """Waits for a share; a share that fails is judged again, one completion at a time."""
        assert self._pool is not None, "it was handed in"
        try:
            found = future.result()
            if _is_sound(found, len(share)):
                self._secs.add(found.secs / len(share))
                self.judged += len(share)
                return found.judged
            fault = f"the worker that judged it failed with {type(found).__name__}: {found}"
        except WorkerLostError as lost:
            fault = f"the worker that judged it {lost}"
            if lost.kind in ("time-out", "slow answer"):
                fault = f"judging took longer than reward.limit_secs={self._settings.limit_secs:g}"
        if len(share) > 1:
            singles = [([item], self._submit(self._pool, [item])) for item in share]
            return [one for item, again in singles for one in self._answer(item, again)]
        self.judged += 1
        return [Judgement.unknown(fault)]


class _Mean:
    """Exponential moving mean of values; safe for several threads."""

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, value: float) -> None:
        self.value = value if not self.value else 0.8 * self.value + 0.2 * value


def _is_sound(found: object, count: int) -> bool:
    """Says whether a worker's answer consists of judgements for that many completions."""
    return (
        isinstance(found, ScoredShare)
        and isinstance(found.secs, float)
        and isinstance(found.judged, list)
        and len(found.judged) == count
        and all(isinstance(one, Judgement) for one in found.judged)
    )


def _fault(begun: concurrent.futures.Future[str]) -> str:
    """Returns why a worker cannot judge by the reward; empty if it can.

    Args:
      begun: a future that is done: the worker has started, or failed to start.
    """
    error = begun.exception()
    if isinstance(error, WorkerLostError):
        return f"it {error}"
    return begun.result() if error is None else str(error)
