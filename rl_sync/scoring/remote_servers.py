"""Judging by any number of reward servers, which may each end and come back."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rl_sync.cluster.pending import Await, await_answer
from rl_sync.cluster.rpc import PeerLostError, RefusedError, RemoteError, RpcClient
from rl_sync.isolation.codec import Records
from rl_sync.rewards.judgement import Judgement
from rl_sync.rewards.reward_settings import RewardSettings
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.scoring.reward_server_calls import (
    AskServerDescription,
    RewardIdentity,
    ServerDescription,
    SubmitCompletions,
    identity_of,
)
from rl_sync.scoring.waiting_room import Room
from rl_sync.settings.records import ConfigError

_ANSWER_SECS = 10.0
_POLL_SECS = 1.0
_RETRY_SECS = 5.0
_SILENT_SECS = 3.0
"""Seconds without any server after which the user gets a message."""
_SLICE = 8
"""Number of completions in a slice, unless the reward benefits from batches."""
_MOST_LANES = 32
_log = logging.getLogger(__name__)


class ServersLostError(RuntimeError):
    """Raised when no reward server answers, or one cannot be used."""


class _WithdrawnError(Exception):
    """Raised when nobody waits for a slice any more."""


@dataclasses.dataclass(eq=False)
class _Slice:
    """Completions that one server judges together.

    Attributes:
      key: name of the slice, so that a server judges it only once.
      judged: future of their judgements, which is set once.
    """

    key: str
    items: Sequence[ScoringRequest]
    judged: concurrent.futures.Future[list[Judgement]] = dataclasses.field(
        default_factory=concurrent.futures.Future
    )


class RemoteScorer:
    """Lets reward servers judge completions; see `rl_sync.scoring.judging.Scorer`.

    Completions wait in one queue. Each server takes slices of it, as many at once as it has
    workers, so a faster server takes more. When a server is lost, its unanswered slices return to
    the queue; the judgements of a slice count once. A lost server is tried again.

    Args:
      reward: the run's reward expression; a server with another one is rejected.
      settings: the servers' addresses, and the length of the queue.
      secret: secret that the servers share.
      wait_secs: maximum wait while no server answers.
      say: called with a line for the user when no server answers.
      retry_secs: seconds until a lost server is tried again.
    """

    def __init__(
        self,
        reward: str,
        settings: RewardSettings,
        *,
        secret: str,
        wait_secs: float,
        say: Callable[[str], None] = _log.warning,
        retry_secs: float = _RETRY_SECS,
    ) -> None:
        self.rubric = Rubric(reward)
        self._batch = settings.batch if self.rubric.in_batches else min(settings.batch, _SLICE)
        self._room, self._wait_secs, self._say = Room(settings.queue), wait_secs, say
        self._queue = _Queue()
        self._count = itertools.count()
        self._own = secrets.token_hex(8)  # Two runs must not use the same keys.
        self._fault: str | None = None
        self._lock = threading.Lock()
        self._received = 0
        self._silent_since: float | None = time.monotonic()
        self._has_said = False
        identity = identity_of(reward)
        self._servers = [
            _RewardServer(address, secret, identity, self._queue, self._spoil, retry_secs)
            for address in settings.server_addresses
        ]

    @property
    def judged(self) -> int:
        """A count that grows while completions are judged."""
        return self._received + sum(server.moves for server in self._servers)

    @property
    def worker_secs(self) -> float:
        """Returns 0: servers have workers of their own."""
        return 0.0

    def judge(
        self, items: Sequence[ScoringRequest], timeout_secs: float | None = None
    ) -> list[Judgement]:
        """Judges completions, in their order; safe for several threads.

        Args:
          timeout_secs: the longest wait for room in the queue.

        Raises:
          QueueTimeoutError: there was no room.
          ServersLostError: no server answered for `wait_secs`, or one has another reward or
            another secret.
          TypeError: a row has a value that cannot be sent.
        """
        with self._room.taken(len(items), timeout_secs):
            slices = [
                _Slice(f"{self._own}-{next(self._count)}", part) for part in self._parts(items)
            ]
            with self._queue.holding(slices):
                for one in slices:
                    while not one.judged.done():
                        self._require_servers()
                        concurrent.futures.wait([one.judged], _POLL_SECS)
                return [judgement for one in slices for judgement in self._received_of(one)]

    def close(self) -> None:
        """Ends the connections; the servers stay."""
        self._queue.close()
        for server in self._servers:
            server.close()

    def _parts(self, items: Sequence[ScoringRequest]) -> Iterator[Sequence[ScoringRequest]]:
        workers = sum(server.workers for server in self._servers)
        size = max(1, min(self._batch, math.ceil(len(items) / max(1, workers))))
        for start in range(0, len(items), size):
            yield items[start : start + size]

    def _received_of(self, one: _Slice) -> list[Judgement]:
        judged = one.judged.result()
        with self._lock:
            self._received += len(judged)
        return judged

    def _spoil(self, fault: str) -> None:
        """Ends all judging for a reason that waiting cannot fix."""
        self._fault = self._fault or fault

    def _require_servers(self) -> None:
        """Raises an error after `wait_secs` without any server."""
        if self._fault is not None:
            raise ServersLostError(self._fault)
        now = time.monotonic()
        if any(server.is_up for server in self._servers):
            self._silent_since, self._has_said = None, False
            return
        self._silent_since = since = self._silent_since or now
        told = "; ".join(f"{server.address}: {server.trouble}" for server in self._servers)
        if now - since > self._wait_secs:
            raise ServersLostError(
                f"No reward server has answered for launch.wait_secs={self._wait_secs:g}"
                f" ({told}). Start one with `rl-sync reward`, or leave out"
                " reward.addresses to have completions judged by workers of the run."
            )
        if not self._has_said and now - since > _SILENT_SECS:
            self._has_said = True
            self._say(
                f"No reward server answers ({told}); waiting for one up to"
                f" launch.wait_secs={self._wait_secs:g}."
            )


def check_server(address: str, secret: str, reward: str) -> None:
    """Checks that a server serves a reward.

    Raises:
      ConfigError: it has another reward, or another secret.
      PeerLostError: it does not answer.
    """
    client = RpcClient(address, "reward server", secret)
    try:
        offer = client.call(AskServerDescription(), _ANSWER_SECS)
    except RefusedError as error:
        raise ConfigError(_refused(error)) from error
    finally:
        client.close()
    if (how := identity_of(reward).difference(offer.identity)) is not None:
        raise ConfigError(_mismatched(address, how))


def _refused(error: RefusedError) -> str:
    return f"{error} Give reward.secret_path the file that the reward server has."


def _mismatched(address: str, how: str) -> str:
    return (
        f"The reward server at {address} cannot judge this run's completions: {how}. Start it with"
        " the run's config."
    )


class _Queue:
    """Queue of slices without a server; slices of a lost server come first."""

    def __init__(self) -> None:
        self._slices: collections.deque[_Slice] = collections.deque()
        self._changed = threading.Condition()
        self.closed = False

    @contextlib.contextmanager
    def holding(self, slices: Sequence[_Slice]) -> Iterator[None]:
        """Adds slices; at the end, withdraws those that were not judged."""
        with self._changed:
            self._slices.extend(slices)
            self._changed.notify_all()
        try:
            yield
        finally:
            for one in slices:
                one.judged.cancel()

    def take(self, until: threading.Event) -> _Slice | None:
        """Waits for a slice; returns None when the queue is closed or the event is set."""
        with self._changed:
            while not (self.closed or until.is_set()):
                while self._slices:
                    if not (one := self._slices.popleft()).judged.cancelled():
                        return one
                self._changed.wait(_POLL_SECS)
        return None

    def put_back(self, one: _Slice) -> None:
        """Puts a slice at the front of the queue."""
        with self._changed:
            self._slices.appendleft(one)
            self._changed.notify()

    def close(self) -> None:
        """Ends all waits."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()


class _RewardServer:
    """The connection to one server, kept by a thread.

    Attributes:
      is_up: whether the server has answered and was not lost since.
      workers: number of its workers at its last answer.
      trouble: reason why the server is not up.
      moves: number of its reports of progress.
    """

    def __init__(
        self,
        address: str,
        secret: str,
        identity: RewardIdentity,
        queue: _Queue,
        spoil: Callable[[str], None],
        retry_secs: float,
    ) -> None:
        self.address, self.trouble = address, "it was not asked yet"
        self.is_up, self.workers, self.moves = False, 0, 0
        self._identity, self._queue, self._spoil = identity, queue, spoil
        self._retry_secs = retry_secs
        self._client = RpcClient(address, "reward server", secret)
        self._over, self._lost = threading.Event(), threading.Event()
        self._keeper = threading.Thread(target=self._keep, name=f"reward {address}", daemon=True)
        self._keeper.start()

    def close(self) -> None:
        """Ends the connection."""
        self._over.set()
        self._lost.set()
        self._client.close()

    def _keep(self) -> None:
        """Connects, lets lanes work until the server is lost, and tries again after a while."""
        while not self._over.is_set():
            offer = self._offer()
            if offer is not None:
                self._lost.clear()
                self.workers, self.is_up = offer.workers, True
                lanes = [
                    threading.Thread(target=self._work, name=f"{self._keeper.name}/{i}")
                    for i in range(min(offer.workers, _MOST_LANES) + 1)
                ]
                for lane in lanes:
                    lane.daemon = True
                    lane.start()
                for lane in lanes:
                    lane.join()
                self.is_up = False
            self._over.wait(self._retry_secs)

    def _offer(self) -> ServerDescription | None:
        try:
            offer = self._client.call(AskServerDescription(), _ANSWER_SECS)
        except RefusedError as error:
            self._spoil(_refused(error))
            return None
        except (PeerLostError, RemoteError) as error:
            self.trouble = str(error)
            return None
        if (how := self._identity.difference(offer.identity)) is not None:
            self._spoil(_mismatched(self.address, how))
            return None
        return offer

    def _work(self) -> None:
        """Lets the server judge slice after slice, until it is lost."""
        while (one := self._queue.take(until=self._lost)) is not None:
            try:
                judged = self._judged(one)
            except (PeerLostError, RemoteError) as error:
                if not self._over.is_set():
                    _log.warning("The reward server at %s is lost: %s", self.address, error)
                self.trouble, self.is_up = str(error), False
                self._lost.set()
                self._queue.put_back(one)
            except TypeError as error:
                _settle(one, error)
            else:
                _settle(one, judged)

    def _judged(self, one: _Slice) -> list[Judgement]:
        before: int | None = None

        def between(progress: int) -> None:
            nonlocal before
            if one.judged.cancelled():
                raise _WithdrawnError
            if before is not None and progress > before:
                self.moves += 1
            before = progress

        hand_in = SubmitCompletions(self._identity.reward, Records(one.items))
        with contextlib.suppress(_WithdrawnError):
            return await_answer(self._answer, hand_in, between, one.key)
        return []

    def _answer(self, call: Await) -> Any:
        return self._client.call(call, _ANSWER_SECS)


def _settle(one: _Slice, result: list[Judgement] | Exception) -> None:
    """Sets the judgements of a slice, unless it was withdrawn or already has them."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        if isinstance(result, Exception):
            one.judged.set_exception(result)
        else:
            one.judged.set_result(result)
