"""Host with worker processes: a fault of one episode's environment costs that episode alone."""

from __future__ import annotations

import collections
import dataclasses
import logging
import pickle
import time
from collections.abc import Mapping
from typing import Any

from rl_sync.environments.hosts.episode_limits import HostLimits
from rl_sync.environments.hosts.frames import MOST_BYTES
from rl_sync.environments.hosts.host import Failure, HostAnswer, Result
from rl_sync.environments.hosts.plain_data import Closed
from rl_sync.environments.hosts.pool import Worker, WorkerEvent, WorkerPool
from rl_sync.environments.hosts.worker import (
    CloseEnvironment,
    Request,
    ResetEnvironment,
    StepEnvironment,
)
from rl_sync.environments.interface import Reply, Turn
from rl_sync.environments.opponents import Seating

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class _WorkerEpisode:
    """An episode under way.

    Attributes:
      request: its first request, until a worker takes it.
      queue_deadline: the end of its wait for a worker.
      worker: hosts it; None while it waits, and after its worker was lost.
      has_answered: whether its last answer was fetched, so that it may be asked again.
      fate: the end of its worker, where that came between two requests.
    """

    request: bytes
    queue_deadline: float
    worker: Worker | None = None
    has_answered: bool = False
    fate: Failure | None = None


class ProcessHost:
    """Runs each environment in a worker process, which hosts one episode at a time.

    Workers are forked from a process that has imported the environment's module, and are used
    again. One that takes too long is killed, with all that it started. When this process ends, in
    any way, they end. An episode that finds no free worker waits. Before an episode, its worker
    seeds the global generators of `random` and NumPy with the episode's seed.

    A request's clock starts when a worker takes it. One thread at a time may call a host.

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
        self._pool = WorkerPool(reference, self._limits)
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
        """Makes an environment and asks it for its first turn, as soon as a worker is free.

        Raises:
          ValueError: the episode is under way already, or the task cannot be sent.
          RuntimeError: workers cannot be started any more.
        """
        assert not self._is_closed, "a closed host begins no episode"
        if episode in self._episodes:
            raise ValueError(f"Episode {episode} is under way already: end it, then begin it anew.")
        self._episodes[episode] = _WorkerEpisode(
            request=_encoded(
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
        found.has_answered = False
        if found.fate is not None:
            self._answer(episode, found.fate)
            return
        assert found.worker is not None, "a worker has answered"
        data = _encoded(StepEnvironment(reply), f"The reply in episode {episode}")
        self._pool.ask(found.worker, "step", data, self._limits.limit_secs)

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
        if worker is not None and worker.asked is None:
            self._ask_to_close(worker)

    def kill(self, episode: int) -> None:
        """Gives an episode up at once: its worker is killed, with all that it started.

        Never raises; an episode that is not under way is left alone.
        """
        self._ready = [answer for answer in self._ready if answer.episode != episode]
        worker = self._forget(episode)
        if worker is not None:
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
            while any(worker.asked for worker in self._pool.workers) and time.monotonic() < until:
                self._hear(until)
        finally:
            self._pool.close()

    def __enter__(self) -> ProcessHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hand_out(self) -> None:
        """Gives free workers to the episodes that wait, the longest wait first."""
        while self._queue and (worker := self._pool.free()) is not None:
            number = self._queue.popleft()
            episode = self._episodes[number]
            episode.worker, worker.episode = worker, number
            request, episode.request = episode.request, b""
            self._pool.ask(worker, "reset", request, self._limits.limit_secs)

    def _next_queue_deadline(self) -> float:
        # A worker without an episode closes an environment, within its own deadline.
        if not self._queue or any(worker.episode is None for worker in self._pool.workers):
            return float("inf")
        # Those that wait are in the order of their deadlines.
        return self._episodes[self._queue[0]].queue_deadline

    def _give_up_waiting(self) -> None:
        while self._next_queue_deadline() <= time.monotonic():
            hosted = [worker.episode for worker in self._pool.workers]
            taken = ", ".join(str(one) for one in hosted if one is not None)
            waited = f"waited {self._limits.queue_secs:g} s (queue_secs) for one of"
            of = f"{self._limits.workers} workers, taken by the episodes {taken or '(none)'}"
            self._answer(self._queue[0], Failure(f"{self._name} {waited} {of}.", "time-out"))

    def _hear(self, deadline: float) -> None:
        for news in self._pool.news(deadline):
            if news.worker.episode is None:
                self._hear_unawaited(news)
            else:
                self._hear_awaited(news.worker.episode, news)

    def _hear_awaited(self, episode: int, news: WorkerEvent) -> None:
        result = news.result
        assert not isinstance(result, Closed), "a worker is asked to close when nobody waits for it"
        if news.is_lost and isinstance(result, Failure):
            result = dataclasses.replace(result, why=f"{self._name}: {result.why}.")
            if news.method is None:
                self._episodes[episode].worker, self._episodes[episode].fate = None, result
                return
        self._answer(episode, result, is_lost=news.is_lost)

    def _hear_unawaited(self, news: WorkerEvent) -> None:
        """Hears of a worker whose episode has ended."""
        result = news.result
        if isinstance(result, Closed):
            if result.fault:
                _log.warning("An environment could not be closed: %s", result.fault)
            if result.is_worn:
                self._pool.retire(news.worker)
        elif news.is_lost and isinstance(result, Failure):
            _log.warning("%s could not be closed: %s.", self._name, result.why)
        else:
            self._ask_to_close(news.worker)

    def _answer(self, number: int, result: Result, is_lost: bool = False) -> None:
        """Records an answer; if it is the episode's last, its environment is closed."""
        self._ready.append(HostAnswer(number, result))
        if isinstance(result, Turn):
            return
        worker = self._forget(number)
        if worker is not None and not is_lost:
            self._ask_to_close(worker)

    def _forget(self, number: int) -> Worker | None:
        """Forgets an episode; returns its worker if it has one."""
        episode = self._episodes.pop(number, None)
        if number in self._queue:
            self._queue.remove(number)
        if episode is None or episode.worker is None:
            return None
        episode.worker.episode = None
        return episode.worker

    def _ask_to_close(self, worker: Worker) -> None:
        self._pool.ask(worker, "close", _encoded(CloseEnvironment(), "It"), self._limits.limit_secs)


def _encoded(request: Request, what: str) -> bytes:
    """Encodes a request for a worker.

    Raises:
      ValueError: a part of it cannot be sent, or it is too long.
    """
    try:
        data = pickle.dumps(request, protocol=5)
    except Exception as error:
        raise ValueError(
            f"{what} cannot be sent to a worker: {type(error).__name__}: {error}"
        ) from error
    if len(data) > MOST_BYTES:
        raise ValueError(
            f"{what} has {len(data) >> 20} MiB, more than the {MOST_BYTES >> 20} MiB that are sent"
            " to a worker: let it name a file instead."
        )
    return data
