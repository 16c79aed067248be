"""The master's part in the travels of weights: who has them, who wants them, and by which way."""

from __future__ import annotations

from rl_sync.cluster import weight_calls as calls
from rl_sync.cluster.rpc import Handler
from rl_sync.weights.rendezvous import MeetingPoint


class WeightRegistry:
    """Answers the calls by which the trainer and explorers find each other."""

    def __init__(self) -> None:
        self._meeting = MeetingPoint()
        self._transfer: str | None = None
        self._holders: dict[int, str] = {}

    def handlers(self) -> tuple[Handler, ...]:
        """Pairs each kind of call with the function that answers it."""
        meeting = self._meeting
        return (
            calls.DecideTransfer.answered_by(self._decide),
            calls.AskTransfer.answered_by(lambda call: self._transfer),
            calls.HoldWeights.answered_by(self._hold),
            calls.AskHolders.answered_by(
                lambda call: [address for _, address in sorted(self._holders.items())]
            ),
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
