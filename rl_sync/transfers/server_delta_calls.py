"""Calls of the server transfer by differences, and the process behind them as a source."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from rl_sync.cluster.rpc import PeerLostError, RemoteError, RpcClient
from rl_sync.isolation.codec import record
from rl_sync.messages.call import Call
from rl_sync.weights.deltas.artifact import (
    Artifact,
    ArtifactKey,
    BlockName,
    HeldVersion,
)
from rl_sync.weights.deltas.block_cache import (
    SourceBusyError,
)


@record
class WeightsUpdate(NamedTuple):
    """The way of an explorer's process to a version, for the parts of one process of the trainer.

    Attributes:
      target: the version.
      route: artifacts to apply in order; none if the explorer has the version.
    """

    target: HeldVersion
    route: list[Artifact]


@dataclasses.dataclass(frozen=True)
class AskUpdate(Call[WeightsUpdate | None]):
    """Waits for a version, and asks for the way there from the verified one; None if it is late."""

    reader: str
    held: HeldVersion | None
    exactly: int | None
    at_least: int | None
    timeout_secs: float


@dataclasses.dataclass(frozen=True)
class AskArtifact(Call[Artifact]):
    """Asks for the list of an artifact's blocks."""

    key: ArtifactKey


@dataclasses.dataclass(frozen=True)
class FetchBlocks(Call[list[bytes] | None]):
    """Fetches blocks of one artifact, from the trainer or an explorer; see `BlockSource.blocks`.

    The result is None if the explorer cannot give them now.
    """

    names: list[BlockName]
    via: list[str]


@dataclasses.dataclass(frozen=True)
class Acknowledge(Call[None]):
    """Reports that an explorer's process has verified a version."""

    reader: str
    version: int


class RpcSource:
    """A process that answers `FetchBlocks`; see `BlockSource`.

    Args:
      name: its name.
      address: its `host:port`.
      secret: the run's secret.
      stall_secs: maximum time for an answer.
    """

    def __init__(self, name: str, address: str, secret: str, stall_secs: float) -> None:
        self.name, self._address = name, address
        self._secret, self._stall_secs = secret, stall_secs
        self._clients: dict[int, RpcClient] = {}

    def blocks(self, names: Sequence[BlockName], via: Sequence[str], stream: int) -> list[bytes]:
        """See `BlockSource`."""
        if (client := self._clients.get(stream)) is None:
            client = RpcClient(self._address, self.name, self._secret, own_connection=True)
            self._clients[stream] = client
        try:
            payloads = client.call(FetchBlocks([*names], [*via]), self._stall_secs)
        except (PeerLostError, RemoteError) as error:
            raise ConnectionError(str(error)) from error
        if payloads is None:
            raise SourceBusyError(f"{self.name} waits for these blocks itself")
        return payloads

    def reconnect(self, stream: int) -> None:
        """See `BlockSource`."""
        if (client := self._clients.pop(stream, None)) is not None:
            client.close()

    def close(self) -> None:
        """Closes the connections."""
        for client in self._clients.values():
            client.close()
