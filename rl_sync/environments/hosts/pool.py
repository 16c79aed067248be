"""Pool of worker processes: requests, their deadlines, and the ends of workers."""

from __future__ import annotations

import dataclasses
import selectors
import time
from typing import NamedTuple

from rl_sync.environments.hosts.channel import Channel
from rl_sync.environments.hosts.episode_limits import HostLimits
from rl_sync.environments.hosts.forks import Forks, ServerLostError
from rl_sync.environments.hosts.host import Failure, Kind
from rl_sync.environments.hosts.plain_data import Sent, unpack
from rl_sync.environments.hosts.socket_thread import SocketThread
from rl_sync.environments.hosts.worker import READY, Method

_LAST_WORDS_SECS = 1.0
"""The time from the end of a worker's channel to the news how the worker ended."""
_MOST_LOSSES = 3
_SERVER, _BELL = 0, 1  # The selector's keys of the fork server, and of the courier.
_NEVER = float("inf")


@dataclasses.dataclass(eq=False)
class Worker:
    """A worker process.

    Attributes:
      episode: the episode that it hosts; None if nobody waits for its answers any more.
      asked: the method that it is to answer; None between requests.
      limit_secs: the time for that, from when a worker that has started gets the request.
      deadline: the end of the time for an answer, a start, or the news of its end.
      has_started: whether it takes requests.
      is_answering: whether the first part of its answer has arrived, which stops its clock.
    """

    number: int
    channel: Channel
    deadline: float
    episode: int | None = None
    asked: Method | None = None
    limit_secs: float = 0.0
    has_started: bool = False
    is_answering: bool = False

    @property
    def is_free(self) -> bool:
        """Says whether it can host an episode."""
        return self.episode is None and self.asked is None and self.channel.is_open


class WorkerEvent(NamedTuple):
    """A worker's answer, or its end.

    Attributes:
      method: the method that it was to answer, or None.
      is_lost: whether the worker has ended; the result is then a `Failure`.
    """

    worker: Worker
    method: Method | None
    result: Sent
    is_lost: bool


class WorkerPool:
    """Worker processes, forked as they are needed.

    Args:
      reference: the environment.
      limits: limits of time, memory and number.

    Raises:
      ValueError: the environment cannot be imported.
    """

    def __init__(self, reference: str, limits: HostLimits) -> None:
        self._reference, self._limits = reference, limits
        self._selector = selectors.DefaultSelector()
        self._courier = SocketThread()
        self._selector.register(self._courier.bell, selectors.EVENT_READ, _BELL)
        self._workers: dict[int, Worker] = {}
        self._news: list[WorkerEvent] = []
        self._forked = 0
        self._losses = 0
        self._forks: Forks | None = None
        try:
            self._begin_forks()
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> list[Worker]:
        """Workers that live, as far as is known."""
        return list(self._workers.values())

    def free(self) -> Worker | None:
        """Returns a worker that hosts no episode, a new one if need be; None if all are taken.

        Raises:
          RuntimeError: the process that starts workers ended again and again.
        """
        for worker in self._workers.values():
            if worker.is_free:
                return worker
        return self._new() if len(self._workers) < self._limits.workers else None

    def ask(self, worker: Worker, method: Method, data: bytes, limit_secs: float) -> None:
        """Sends a request to a worker that has none."""
        assert worker.asked is None, "a worker answers one request at a time"
        worker.asked, worker.limit_secs, worker.is_answering = method, limit_secs, False
        if worker.has_started and worker.channel.is_open:
            worker.deadline = time.monotonic() + limit_secs
        worker.channel.send(data)

    def news(self, deadline: float) -> list[WorkerEvent]:
        """Returns news, each once.

        Args:
          deadline: the end of the wait, by `time.monotonic`. A wait may also end sooner.
        """
        self._read(0.0)  # An answer that came while nobody looked came in time.
        self._enforce_deadlines()
        until = min([deadline, *(worker.deadline for worker in self._workers.values())])
        left = until - time.monotonic()
        if left > 0 and not self._news:
            self._read(left)
        news, self._news = self._news, []
        return news

    def retire(self, worker: Worker) -> None:
        """Kills a worker of which no news is wanted any more."""
        self._remove(worker)
        self._kill(worker)

    def close(self) -> None:
        """Ends all workers."""
        for worker in self.workers:
            self._remove(worker)
        self._courier.close()
        self._selector.close()
        if self._forks is not None:
            self._forks.close()
            self._forks = None

    def _begin_forks(self) -> Forks:
        forks = Forks(self._reference, self._limits.memory_bytes, self._limits.start_secs)
        self._selector.register(forks.control, selectors.EVENT_READ, _SERVER)
        self._forks = forks
        return forks

    def _new(self) -> Worker | None:
        if self._losses > _MOST_LOSSES:
            raise RuntimeError(
                f"The process that starts workers of {self._reference!r} ended {self._losses} times"
                " in a row. The error output may say why; the environment may kill its parent."
            )
        try:
            forks = self._forks or self._begin_forks()
            self._forked += 1
            sock = forks.fork(self._forked)
        except ServerLostError:
            self._lose_forks()
            return None
        worker = Worker(
            number=self._forked,
            channel=Channel(sock, self._courier, self._forked),
            deadline=time.monotonic() + self._limits.start_secs,
        )
        self._workers[worker.number] = worker
        return worker

    def _read(self, timeout_secs: float) -> None:
        ready = {key.data for key, _ in self._selector.select(timeout_secs)}
        if _BELL in ready:
            for number in sorted(self._courier.heard()):
                # An end that was heard of before may have removed it.
                if (worker := self._workers.get(number)) is not None:
                    self._hear(worker)
        if _SERVER in ready:
            self._hear_of_ends()

    def _hear(self, worker: Worker) -> None:
        """Reads what a worker has sent."""
        try:
            for payload in worker.channel.received():
                self._take(worker, payload)
        except ValueError as error:
            self._lose(worker, "nonsense", str(error))
            self._kill(worker)
            return
        if not worker.channel.is_open:
            worker.deadline = min(worker.deadline, time.monotonic() + _LAST_WORDS_SECS)

    def _take(self, worker: Worker, payload: bytes) -> None:
        if payload == READY and not worker.has_started:
            worker.has_started, self._losses = True, 0
            worker.deadline = _NEVER
            if worker.asked is not None:
                worker.deadline = time.monotonic() + worker.limit_secs
            return
        result = unpack(payload)
        if worker.asked is None:
            raise ValueError("A worker answered what nobody had asked.")
        method, worker.asked, worker.deadline = worker.asked, None, _NEVER
        self._news.append(WorkerEvent(worker, method, result, is_lost=False))

    def _hear_of_ends(self) -> None:
        assert self._forks is not None, "its socket was ready"
        try:
            for number, why in self._forks.ended():
                if (worker := self._workers.get(number)) is not None:
                    self._hear(worker)  # It may have answered before.
                    self._lose(worker, "died", f"its worker {why}")
        except ServerLostError:
            self._lose_forks()

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        for worker in self.workers:
            if now < worker.deadline or self._has_answered_after_all(worker, now):
                continue
            if not worker.channel.is_open:
                self._lose(worker, "died", "its worker closed the channel to the host")
            elif not worker.has_started:
                late = (
                    f"its worker took longer than start_secs={self._limits.start_secs:g} to start"
                )
                self._lose(worker, "time-out", late)
            elif worker.is_answering:
                late = f"the answer to {worker.asked} took longer than {worker.limit_secs:g} s"
                self._lose(worker, "time-out", f"{late} to arrive, and its worker was killed")
            else:
                late = f"{worker.asked} took longer than {worker.limit_secs:g} s"
                self._lose(worker, "time-out", f"{late}, and its worker was killed")
            self._kill(worker)

    def _has_answered_after_all(self, worker: Worker, now: float) -> bool:
        """Looks for what has arrived since; an answer that has begun has time to arrive."""
        self._hear(worker)
        if worker.number not in self._workers or now < worker.deadline:
            return True
        if not worker.channel.is_open or not worker.channel.is_receiving or worker.is_answering:
            return False
        worker.is_answering, worker.deadline = True, now + worker.limit_secs
        return worker.has_started

    def _lose(self, worker: Worker, kind: Kind, why: str) -> None:
        if worker.number in self._workers:
            self._remove(worker)
            self._news.append(WorkerEvent(worker, worker.asked, Failure(why, kind), is_lost=True))

    def _lose_forks(self) -> None:
        """Gives up a fork server that has ended; its workers end with it."""
        if self._forks is not None:
            self._selector.unregister(self._forks.control)
            self._forks.close()
            self._forks = None
        self._losses += 1
        for worker in self.workers:
            self._hear(worker)
            self._lose(worker, "died", "the process that had started its worker ended")

    def _kill(self, worker: Worker) -> None:
        try:
            if self._forks is not None:
                self._forks.kill(worker.number)
        except ServerLostError:
            self._lose_forks()

    def _remove(self, worker: Worker) -> None:
        del self._workers[worker.number]
        worker.channel.close()
