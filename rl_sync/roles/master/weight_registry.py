"""The master's registry for weight transfers: holders of weights, requests, and the transfer."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Mapping

from rl_sync.messages import weight_calls as calls
from rl_sync.messages.call import Handler
from rl_sync.messages.weight_calls import Relay
from rl_sync.role_names import explorer_name
from rl_sync.weights.deltas.relay_tree import RelayTree
from rl_sync.weights.rendezvous import Meeting, MeetingPoint


@dataclasses.dataclass(frozen=True)
class RegistryMemory:
    """Content of a registry, from which another one can begin.

    Attributes:
      transfer: the transfer; None before the choice.
      holders: address of each of the trainer's processes that serve weights.
      relays: address of each process that hands on blocks. How it did as a source is not kept.
      meeting: requests and grants of collective transfers.
    """

    transfer: str | None = None
    holders: Mapping[int, str] = dataclasses.field(default_factory=dict)
    relays: Mapping[str, str] = dataclasses.field(default_factory=dict)
    meeting: Meeting = dataclasses.field(default_factory=Meeting)


class WeightRegistry:
    """Answers the calls that bring the trainer and explorers together.

    Args:
      fanout: see `RelayTree`.
      memory: content at the beginning.
    """

    def __init__(self, fanout: int = 0, memory: RegistryMemory = RegistryMemory()) -> None:
        self._lock = threading.Lock()
        self._relays = RelayTree(fanout or sys.maxsize)
        for reader, address in memory.relays.items():
            self._relays.join(reader, address)
        self._meeting = MeetingPoint(memory.meeting)
        self._transfer = memory.transfer
        self._holders = {**memory.holders}

    def memory(self) -> RegistryMemory:
        """Returns the content."""
        with self._lock:
            relays = self._relays.addresses
        return RegistryMemory(self._transfer, {**self._holders}, relays, self._meeting.content())

    def lasting_handlers(self) -> tuple[Handler, ...]:
        """Returns the handlers of calls that change the content; they may be answered again."""
        meeting = self._meeting
        return (
            calls.DecideTransfer.answered_by(self._decide),
            calls.HoldWeights.answered_by(self._hold),
            calls.JoinRelays.answered_by(self._join),
            calls.AskWeights.answered_by(
                lambda call: meeting.ask(call.explorer, call.exactly, call.at_least, call.number)
            ),
            calls.Withdraw.answered_by(lambda call: meeting.withdraw(call.ticket)),
            calls.GrantWeights.answered_by(lambda call: meeting.grant(call.request, *call.grant)),
        )

    def handlers(self) -> tuple[Handler, ...]:
        """Returns the handlers of all calls about weights."""
        meeting = self._meeting
        return (
            *self.lasting_handlers(),
            calls.AskTransfer.answered_by(lambda call: self._transfer),
            calls.AskHolders.answered_by(
                lambda call: [address for _, address in sorted(self._holders.items())]
            ),
            calls.AskRelays.answered_by(self._path),
            calls.ReportRelay.answered_by(self._report),
            calls.AwaitGrant.answered_by(
                lambda call: meeting.granted(call.ticket, call.timeout_secs)
            ),
            calls.AskWaiting.answered_by(lambda call: meeting.waiting(call.timeout_secs)),
        )

    def _decide(self, call: calls.DecideTransfer) -> None:
        self._transfer = call.transfer

    def _hold(self, call: calls.HoldWeights) -> None:
        self._holders[call.process] = call.address

    def trainer_died(self) -> None:
        """Forgets where the trainer served weights, and who waits to meet it."""
        self._holders.clear()
        self._meeting.reset()

    def explorer_died(self, explorer: int) -> None:
        """Takes a dead explorer out of the tree of relays, and its request back."""
        with self._lock:
            self._relays.leave(explorer_name(explorer))
        self._meeting.leave(explorer)

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
