"""Host with worker processes: a fault of one episode's environment affects only that episode."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from rl_sync.environments.hosts.episode_limits import HostLimits
from rl_sync.environments.hosts.episode_worker import (
    Closed,
    CloseEnvironment,
    Method,
    ResetEnvironment,
    StepEnvironment,
)
from rl_sync.environments.hosts.host import Failure, HostAnswer, Result
from rl_sync.environments.interface import Outcome, Reply, Turn
from rl_sync.environments.opponents import Seating
from rl_sync.isolation.worker import Worker, WorkerLostError
from rl_sync.isolation.worker_pool import WorkerPool, encoded

_PROGRAM = "rl_sync.environments.hosts.episode_worker:EpisodeWorker"
_CLOSE = encoded(CloseEnvironment(), "It")
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class _WorkerEpisode:
    """An episode in progress.

    Attributes:
      request: first request, until a worker takes it.
      queue_deadline: end of its wait for a worker.
      worker: its worker; None while it waits.
      has_answered: whether its last answer was fetched, so that it may get another request.
    """

    request: bytes
    queue_deadline: float
    worker: Worker | None = None
    has_answered: bool = False


@dataclasses.dataclass
class _Hosting:
    """A worker that was taken.

    Attributes:
      episode: episode that it hosts; None if nobody waits for its answers any more.
      asked: method that it is answering; None between requests.
    """

    episode: int | None
    asked: Method | None = None


class ProcessHost:
    """Runs each environment in a worker process, which hosts one episode at a time.

    Workers are forked from a process that has imported the environment's module, and are used
    again. A worker that takes too long is killed, with all processes that it started. When this
    process ends, in any way, all workers end. An episode that finds no free worker waits. Before an
    episode, its worker seeds the global generators of `random` and NumPy with the episode's seed.

    The time limit of a request starts when a worker takes it. Only one thread at a time may call a
    host.

    Args:
      reference: such as `module:Class(level=3)` or `path/to/file.py:Class`.
      limits: limits of time, memory and number.

    Raises:
      ValueError: the environment cannot be imported, or its module imports JAX, whose state must
        not be copied to workers.
    """

    def __init__(self, reference: str, limits: HostLimits | None = None) -> None:
        self._limits = limits or HostLimits()
        self._name = reference.partition("(")[0].strip()
        self._pool = WorkerPool(
            _PROGRAM,
            [reference, self._limits.memory_bytes],
            name=reference,
            workers=self._limits.workers,
            start_secs=self._limits.start_secs,
        )
        self._pool.prepare()
        self._hostings: dict[Worker, _Hosting] = {}
        self._heard: queue.SimpleQueue[tuple[Worker, concurrent.futures.Future[Any]]]
        self._heard = queue.SimpleQueue()
        self._episodes: dict[int, _WorkerEpisode] = {}
        self._queue: collections.deque[int] = collections.deque()
        self._ready: list[HostAnswer] = []
        self._is_closed = False

    @property
    def queued(self) -> int:
        """Number of episodes that cannot begin before others end."""
        room = self._limits.workers - (len(self._episodes) - len(self._queue))
        return max(0, len(self._queue) - room)

    def begin(
        self, episode: int, task: Mapping[str, Any], seed: int, seating: Seating | None = None
    ) -> None:
        """Makes an environment, and requests its first turn, as soon as a worker is free.

        Raises:
          ValueError: the episode is already in progress, or the task cannot be sent.
          RuntimeError: workers cannot be started any more.
        """
        assert not self._is_closed, "a closed host begins no episode"
        if episode in self._episodes:
            raise ValueError(f"Episode {episode} is under way already: end it, then begin it anew.")
        self._episodes[episode] = _WorkerEpisode(
            request=encoded(
                ResetEnvironment(task, seed, seating), f"The task of episode {episode}"
            ),
            queue_deadline=time.monotonic() + self._limits.queue_secs,
        )
        self._queue.append(episode)
        self._hand_out()

    def step(self, episode: int, reply: Reply) -> None:
        """Gives the policy's reply to a turn that was answered.

        Raises:
          ValueError: the episode is not under way, or its last answer was not fetched.
        """
        found = self._episodes.get(episode)
        if found is None:
            raise ValueError(f"Episode {episode} is not under way: it ended, or never began.")
        if not found.has_answered:
            raise ValueError(f"Episode {episode} is asked already: fetch its answer, then step.")
        assert found.worker is not None, "a worker has answered"
        data = encoded(StepEnvironment(reply), f"The reply in episode {episode}")
        found.has_answered = False
        self._ask(found.worker, "step", data)

    def answers(self, timeout_secs: float) -> list[HostAnswer]:
        """Returns answers that are ready, each once.

        Args:
          timeout_secs: the longest wait for the first.

        Raises:
          RuntimeError: workers cannot be started any more.
        """
        until = time.monotonic() + timeout_secs
        while True:
            self._hear(0.0)
            self._hand_out()
            self._give_up_waiting()
            if not self._ready:
                self._hear(min(until, self._next_queue_deadline()))
                self._hand_out()
            if self._ready or time.monotonic() >= until:
                ready, self._ready = self._ready, []
                for answer in ready:
                    if answer.episode in self._episodes:
                        self._episodes[answer.episode].has_answered = True
                return ready

    def end(self, episode: int) -> None:
        """Gives an episode up: its environment is closed once it has answered.

        Never raises; an episode that is not under way is left alone.
        """
        self._ready = [answer for answer in self._ready if answer.episode != episode]
        worker = self._forget(episode)
        if worker is not None and self._hostings[worker].asked is None:
            self._ask(worker, "close", _CLOSE)

    def kill(self, episode: int) -> None:
        """Gives an episode up at once: its worker is killed, with all that it started.

        Never raises; an episode that is not under way is left alone.
        """
        self._ready = [answer for answer in self._ready if answer.episode != episode]
        worker = self._forget(episode)
        if worker is not None:
            del self._hostings[worker]
            self._pool.retire(worker)

    def close(self) -> None:
        """Ends all episodes, lets their environments close, and ends the processes."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            for episode in list(self._episodes):
                self.end(episode)
            until = time.monotonic() + self._limits.closing_secs
            while self._hostings and time.monotonic() < until:
                self._hear(until)
        finally:
            self._pool.close()

    def __enter__(self) -> ProcessHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hand_out(self) -> None:
        """Gives free workers to the episodes that wait, the longest wait first."""
        while self._queue and (worker := self._pool.take()) is not None:
            number = self._queue.popleft()
            episode = self._episodes[number]
            episode.worker, self._hostings[worker] = worker, _Hosting(number)
            request, episode.request = episode.request, b""
            self._ask(worker, "reset", request)

    def _ask(self, worker: Worker, method: Method, data: bytes) -> None:
        self._hostings[worker].asked = method
        answer = worker.ask(data, self._limits.limit_secs)
        answer.add_done_callback(lambda answer: self._heard.put((worker, answer)))

    def _next_queue_deadline(self) -> float:
        # A worker without an episode closes an environment, within its own deadline.
        if not self._queue or any(one.episode is None for one in self._hostings.values()):
            return float("inf")
        # Waiting episodes are in the order of their deadlines.
        return self._episodes[self._queue[0]].queue_deadline

    def _give_up_waiting(self) -> None:
        while self._next_queue_deadline() <= time.monotonic():
            taken = ", ".join(str(one.episode) for one in self._hostings.values())
            waited = f"waited {self._limits.queue_secs:g} s (queue_secs) for one of"
            of = f"{self._limits.workers} workers, taken by the episodes {taken or '(none)'}"
            self._answer(self._queue[0], Failure(f"{self._name} {waited} {of}.", "time-out"))

    def _hear(self, deadline: float) -> None:
        """Takes the answers of workers; waits for the first until a deadline."""
        with contextlib.suppress(queue.Empty):
            left = max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX))
            self._take(*self._heard.get(timeout=left))
            while True:
                self._take(*self._heard.get_nowait())

    def _take(self, worker: Worker, answer: concurrent.futures.Future[Any]) -> None:
        """Passes a worker's answer to the episode that waits for it, if there is one."""
        hosting = self._hostings.get(worker)
        if hosting is None:  # The worker was killed.
            return
        method, hosting.asked = hosting.asked, None
        assert method is not None, "it has answered"
        result = self._result(method, answer)
        is_lost = answer.exception() is not None
        if hosting.episode is not None:
            assert not isinstance(result, Closed), "it is asked to close when nobody waits for it"
            self._answer(hosting.episode, result, is_lost=is_lost)
        elif isinstance(result, Closed) or is_lost:
            fault = result.fault if isinstance(result, Closed) else getattr(result, "why", "")
            if fault:
                _log.warning("An environment could not be closed: %s", fault)
            is_worn = isinstance(result, Closed) and result.is_worn
            self._release(worker, is_lost=is_lost or is_worn)
        else:
            self._ask(worker, "close", _CLOSE)

    def _result(self, method: Method, answer: concurrent.futures.Future[Any]) -> Result | Closed:
        """Reads an answer.

        Raises:
          RuntimeError: workers cannot be started any more.
          ValueError: the environment cannot be imported any more.
        """
        try:
            found = answer.result()
        except WorkerLostError as lost:
            return self._loss(method, lost)
        if isinstance(found, Closed if method == "close" else Turn | Outcome | Failure):
            return found
        if isinstance(found, MemoryError):
            return Failure(f"{self._name}: the environment {found}.", "memory")
        if isinstance(found, OverflowError):
            return Failure(f"{self._name}: the environment {found}.", "nonsense")
        if isinstance(found, Exception):
            return Failure(f"{self._name}: {found}", "raised")
        why = f"{self._name}: its worker sent a {type(found).__name__}, which is no answer."
        return Failure(why, "nonsense")

    def _loss(self, method: Method, lost: WorkerLostError) -> Failure:
        """Describes why a worker was lost before it answered."""
        limit = f"longer than {self._limits.limit_secs:g} s"
        killed = "and its worker was killed"
        match lost.kind:
            case "time-out":
                return Failure(f"{self._name}: {method} took {limit}, {killed}.", "time-out")
            case "slow answer":
                late = f"the answer to {method} took {limit} to arrive, {killed}"
                return Failure(f"{self._name}: {late}.", "time-out")
            case "start":
                return Failure(f"{self._name}: its worker {lost}.", "time-out")
            case "died" | "nonsense":
                return Failure(f"{self._name}: its worker {lost}.", lost.kind)

    def _answer(self, number: int, result: Result, is_lost: bool = False) -> None:
        """Records an answer; if it is the episode's last, its environment is closed."""
        self._ready.append(HostAnswer(number, result))
        if isinstance(result, Turn):
            return
        worker = self._forget(number)
        if worker is None:
            return
        if is_lost:
            self._release(worker, is_lost=True)
        else:
            self._ask(worker, "close", _CLOSE)

    def _release(self, worker: Worker, *, is_lost: bool) -> None:
        del self._hostings[worker]
        if is_lost:
            self._pool.retire(worker)
        else:
            self._pool.give_back(worker)

    def _forget(self, number: int) -> Worker | None:
        """Forgets an episode; returns its worker if it has one."""
        episode = self._episodes.pop(number, None)
        if number in self._queue:
            self._queue.remove(number)
        if episode is None or episode.worker is None:
            return None
        self._hostings[episode.worker].episode = None
        return episode.worker
