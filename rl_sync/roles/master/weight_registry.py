"""The master's registry for weight transfers: holders of weights, requests, and the transfer."""

from __future__ import annotations

import sys
import threading
import time

from rl_sync.cluster import weight_calls as calls
from rl_sync.cluster.rpc import Handler
from rl_sync.weights.deltas.relay_tree import Relay, RelayTree
from rl_sync.weights.rendezvous import MeetingPoint


class WeightRegistry:
    """Answers the calls that bring the trainer and explorers together.

    Args:
      fanout: see `RelayTree`.
    """

    def __init__(self, fanout: int = 0) -> None:
        self._lock = threading.Lock()
        self._relays = RelayTree(fanout or sys.maxsize)
        self._meeting = MeetingPoint()
        self._transfer: str | None = None
        self._holders: dict[int, str] = {}

    def handlers(self) -> tuple[Handler, ...]:
        """Returns the handlers of these calls."""
        meeting = self._meeting
        return (
            calls.DecideTransfer.answered_by(self._decide),
            calls.AskTransfer.answered_by(lambda call: self._transfer),
            calls.HoldWeights.answered_by(self._hold),
            calls.AskHolders.answered_by(
                lambda call: [address for _, address in sorted(self._holders.items())]
            ),
            calls.JoinRelays.answered_by(self._join),
            calls.AskRelays.answered_by(self._path),
            calls.ReportRelay.answered_by(self._report),
            calls.AskWeights.answered_by(
                lambda call: meeting.ask(call.explorer, call.exactly, call.at_least)
            ),
            calls.AwaitGrant.answered_by(
                lambda call: meeting.granted(call.ticket, call.timeout_secs)
            ),
            calls.Withdraw.answered_by(lambda call: meeting.withdraw(call.ticket)),
            calls.AskWaiting.answered_by(lambda call: meeting.waiting(call.timeout_secs)),
            calls.GrantWeights.answered_by(lambda call: meeting.grant(call.request, *call.grant)),
        )

    def _decide(self, call: calls.DecideTransfer) -> None:
        self._transfer = call.transfer

    def _hold(self, call: calls.HoldWeights) -> None:
        self._holders[call.process] = call.address

    def trainer_died(self) -> None:
        """Forgets where the trainer served weights, and who waits to meet it."""
        self._holders.clear()
        self._meeting.reset()

    def explorer_died(self, explorer: str) -> None:
        """Takes a dead explorer out of the tree of relays."""
        with self._lock:
            self._relays.leave(explorer)

    def _join(self, call: calls.JoinRelays) -> None:
        with self._lock:
            self._relays.join(call.reader, call.address)

    def _path(self, call: calls.AskRelays) -> list[Relay]:
        with self._lock:
            return self._relays.path(call.reader, time.monotonic())

    def _report(self, call: calls.ReportRelay) -> None:
        with self._lock:
            self._relays.report(
                call.source, call.nbytes, call.secs, bool(call.failure), time.monotonic()
            )
