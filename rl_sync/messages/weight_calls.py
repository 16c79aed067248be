"""The master's calls that help to transfer weights, and their results."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from rl_sync.isolation.codec import record
from rl_sync.messages.call import Call


@record
class Request(NamedTuple):
    """An explorer's request: it is ready to receive weights.

    Attributes:
      explorer: number of the explorer, from 1.
      ticket: number that distinguishes this request from the explorer's earlier ones.
      exactly, at_least: requested version, as in `ends_interface.Puller.pull`.
    """

    explorer: int
    ticket: int
    exactly: int | None
    at_least: int | None

    def accepts(self, version: int) -> bool:
        """Says whether the explorer can use a version."""
        return version >= (self.at_least or 0) if self.exactly is None else version == self.exactly


@record
class Grant(NamedTuple):
    """The trainer's promise to transfer a version now, with the digest of the version."""

    version: int
    digest: str


@record
class Relay(NamedTuple):
    """An explorer's process that hands on blocks: its name and its `host:port`."""

    name: str
    address: str


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
