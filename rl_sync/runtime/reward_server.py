"""Reward server: judges completions of runs on other machines, with workers of its own."""

from __future__ import annotations

import collections
import concurrent.futures
import threading
from collections.abc import Sequence

from rl_sync.expression import parse_sum
from rl_sync.processes.messages import Records
from rl_sync.processes.rpc import Desk, RpcServer
from rl_sync.rewards.identity import identity_of
from rl_sync.rewards.judgement import Judgement
from rl_sync.rewards.rubric import Judgeable
from rl_sync.rewards.settings import RewardSettings
from rl_sync.rewards.workers import Judges
from rl_sync.runtime.reward_calls import AskRewardOffer, Collect, HandIn, Offer, Underway, Unheard

_CALLS = 256  # Served at once; most of them wait for judgements.
_SLICES = 128  # Judged at once; the others wait.
_KEPT = 1024
"""Slices whose judgements are kept, in case the answer with them was lost."""


class RewardServer:
    """Serves one reward until it is closed.

    Args:
      reward: its expression; see `rl_sync.rewards.rubric.Rubric`.
      settings: the workers, and their limits.
      host, port: the address to listen on; port 0 for any free one.
      secret: what callers must know.

    Attributes:
      address: the `HOST:PORT` that runs are told.

    Raises:
      ValueError: the reward cannot be made, or the port is taken.
    """

    def __init__(
        self, reward: str, settings: RewardSettings, *, host: str, port: int, secret: str
    ) -> None:
        self._identity, self._workers = identity_of(reward), max(1, settings.workers)
        self._judges = Judges(reward, settings)
        self._lock = threading.Lock()
        self._slices: collections.OrderedDict[str, concurrent.futures.Future[list[Judgement]]]
        self._slices = collections.OrderedDict()
        self._desk = concurrent.futures.ThreadPoolExecutor(_SLICES, thread_name_prefix="slices")
        self._judged = 0
        desk = Desk(
            AskRewardOffer.answered_by(lambda call: Offer(self._identity, self._workers)),
            HandIn.answered_by(self._hand_in),
            Collect.answered_by(self._collect),
        )
        try:
            self._server = RpcServer(desk, port, host, threads=_CALLS, secret=secret)
        except ValueError:
            self._judges.close()
            raise
        self.address = f"{host}:{self._server.port}"

    def is_prepared(self, timeout_secs: float) -> bool:
        """Says whether all workers have prepared the reward; see `Judges.are_prepared`."""
        return self._judges.are_prepared(timeout_secs)

    def close(self) -> None:
        """Ends the workers; runs that have handed in completions hand them to other servers."""
        self._server.close()
        self._desk.shutdown(wait=False, cancel_futures=True)
        self._judges.close()

    def _hand_in(self, call: HandIn) -> None:
        if parse_sum(call.reward) != parse_sum(self._identity.reward):
            raise ValueError(
                f"This server's reward is {self._identity.reward!r}, and not {call.reward!r}."
            )
        with self._lock:
            if call.key in self._slices:
                return
            self._slices[call.key] = self._desk.submit(self._judge, call.items)
            done = [key for key, one in self._slices.items() if one.done()]
            for key in done[: max(0, len(done) - _KEPT)]:
                del self._slices[key]

    def _collect(self, call: Collect) -> list[Judgement] | Underway | Unheard:
        with self._lock:
            found = self._slices.get(call.key)
        if found is None:
            return Unheard()
        concurrent.futures.wait([found], call.poll_secs)
        if not found.done():
            return Underway(max(self._judged, self._judges.judged))
        if found.cancelled() or found.exception() is not None:
            with self._lock:
                self._slices.pop(call.key, None)  # May be handed in again.
        return found.result()

    def _judge(self, items: Sequence[Judgeable]) -> list[Judgement]:
        judged = self._judges.judge(items)
        with self._lock:
            self._judged += len(items)
        return Records(judged)
