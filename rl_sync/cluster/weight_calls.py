"""The master's calls that help to transfer weights, and their results."""

from __future__ import annotations

import dataclasses

from rl_sync.isolation.codec import record
from rl_sync.messages.call import Call
from rl_sync.weights.deltas.relay_tree import Relay
from rl_sync.weights.rendezvous import Grant, Request

for _class in (Grant, Relay, Request):
    record(_class)


@dataclasses.dataclass(frozen=True)
class DecideTransfer(Call[None]):
    """Reports the transfer that the trainer has chosen."""

    transfer: str


@dataclasses.dataclass(frozen=True)
class AskTransfer(Call[str | None]):
    """Asks for the chosen transfer; None before the choice."""


@dataclasses.dataclass(frozen=True)
class AskNewest(Call[int]):
    """Asks for the newest version, -1 if there is none; see `Puller` in `rl_sync.weights`."""

    at_least: int = -1
    timeout_secs: float = 0.0


@dataclasses.dataclass(frozen=True)
class HoldWeights(Call[None]):
    """Reports the address at which a process of the trainer serves weights."""

    process: int
    address: str


@dataclasses.dataclass(frozen=True)
class AskHolders(Call[list[str]]):
    """Asks for the addresses at which the trainer's processes serve weights, in order."""


@dataclasses.dataclass(frozen=True)
class JoinRelays(Call[None]):
    """Reports that an explorer's process hands on blocks of weights at an address."""

    reader: str
    address: str


@dataclasses.dataclass(frozen=True)
class AskRelays(Call[list[Relay]]):
    """Asks for the explorers' processes to fetch blocks from; see `RelayTree.path`."""

    reader: str


@dataclasses.dataclass(frozen=True)
class ReportRelay(Call[None]):
    """Reports how a process did as a source of blocks; see `RelayTree.report`."""

    source: str
    nbytes: int
    secs: float
    failure: str


@dataclasses.dataclass(frozen=True)
class AskWeights(Call[int]):
    """See `rl_sync.weights.rendezvous.MeetingPoint.ask`."""

    explorer: int
    exactly: int | None
    at_least: int | None
    number: int | None = None


@dataclasses.dataclass(frozen=True)
class AwaitGrant(Call[Grant | None]):
    """See `rl_sync.weights.rendezvous.MeetingPoint.granted`."""

    ticket: int
    timeout_secs: float


@dataclasses.dataclass(frozen=True)
class Withdraw(Call[Grant | None]):
    """See `rl_sync.weights.rendezvous.MeetingPoint.withdraw`."""

    ticket: int


@dataclasses.dataclass(frozen=True)
class AskWaiting(Call[list[Request]]):
    """See `rl_sync.weights.rendezvous.MeetingPoint.waiting`."""

    timeout_secs: float


@dataclasses.dataclass(frozen=True)
class GrantWeights(Call[bool]):
    """See `rl_sync.weights.rendezvous.MeetingPoint.grant`."""

    request: Request
    grant: Grant
