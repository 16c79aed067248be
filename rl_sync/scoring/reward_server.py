"""Reward server: judges completions for runs on other machines, with workers of its own."""

from __future__ import annotations

import threading

from rl_sync.addresses import address_of
from rl_sync.cluster.pending import PendingCalls
from rl_sync.cluster.rpc import CallHandlers, RpcServer
from rl_sync.expression import parse_sum
from rl_sync.isolation.codec import Records
from rl_sync.rewards.judgement import Judgement
from rl_sync.rewards.reward_settings import RewardSettings
from rl_sync.scoring.local_scorer import LocalScorer
from rl_sync.scoring.reward_server_calls import (
    AskServerDescription,
    ServerDescription,
    SubmitCompletions,
    identity_of,
)

_CALLS = 256  # Number of calls served at once; most of them wait for judgements.
_SLICES = 128  # Number of slices judged at once; the others wait.
_KEPT = 1024
"""Number of slices whose judgements are kept, in case an answer was lost."""


class RewardServer:
    """Serves one reward until it is closed.

    Args:
      reward: the reward's expression; see `rl_sync.rewards.rubric.Rubric`.
      settings: number of workers, and their limits.
      host, port: the address to listen on; port 0 for any free one.
      secret: secret that callers must know.

    Attributes:
      address: the `HOST:PORT` to set in the runs' configs.

    Raises:
      ValueError: the reward cannot be made, or the port is taken.
    """

    def __init__(
        self, reward: str, settings: RewardSettings, *, host: str, port: int, secret: str
    ) -> None:
        self._identity, self._workers = identity_of(reward), max(1, settings.workers)
        self._judges = LocalScorer(reward, settings)
        self._lock = threading.Lock()
        self._judged = 0
        self._pending = PendingCalls(
            SubmitCompletions.answered_by(self._judge),
            threads=_SLICES,
            progress=lambda: max(self._judged, self._judges.judged),
            kept=_KEPT,
        )
        desk = CallHandlers(
            AskServerDescription.answered_by(
                lambda call: ServerDescription(self._identity, self._workers)
            ),
            self._pending.handler(),
        )
        try:
            self._server = RpcServer(desk, port, host, threads=_CALLS, secret=secret)
        except ValueError:
            self._judges.close()
            raise
        self.address = address_of(host, self._server.port)

    def is_prepared(self, timeout_secs: float) -> bool:
        """Says whether all workers have prepared the reward; see `LocalScorer.are_prepared`."""
        return self._judges.are_prepared(timeout_secs)

    def close(self) -> None:
        """Ends the workers; runs give their unanswered completions to other servers."""
        self._server.close()
        self._pending.close()
        self._judges.close()

    def _judge(self, call: SubmitCompletions) -> list[Judgement]:
        if parse_sum(call.reward) != parse_sum(self._identity.reward):
            raise ValueError(
                f"This server's reward is {self._identity.reward!r}, and not {call.reward!r}."
            )
        judged = self._judges.judge(call.items)
        with self._lock:
            self._judged += len(call.items)
        return Records(judged)
