"""The trainer's end of the server transfer by differences, and the calls that it answers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from rl_sync.addresses import address_of
from rl_sync.cluster.rpc import CallHandlers, PeerLostError, RemoteError, RpcClient, RpcServer
from rl_sync.isolation.codec import record
from rl_sync.messages.call import Call
from rl_sync.transfers.server_publisher import AskManifest, CloseLine
from rl_sync.types import Params
from rl_sync.weights.background_publisher import QueueRules
from rl_sync.weights.cells import DeviceRegions
from rl_sync.weights.deltas.artifact import Artifact, ArtifactKey, BlockName, HeldVersion
from rl_sync.weights.deltas.block_cache import SourceBusyError
from rl_sync.weights.deltas.history import AddedVersion, VersionHistory
from rl_sync.weights.deltas.history_publisher import CutVersion, HistoryPublisher
from rl_sync.weights.parts import Cutter, plan_manifest

_POLL_SECS = 0.1
_CLOSE_SECS = 5.0
_THREADS = 64


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


class DeltaPublisher(HistoryPublisher):
    """Offers versions as differences and full copies, and answers explorers' calls.

    Args:
      params: abstract params in the trainer's shardings.
      host: interface at which explorers reach this process.
      secret: the run's secret.
      chain: id of this publisher, the same in all processes of the trainer.
      expected: regions that explorers are expected to hold; see `plan_manifest`.
      keep: see `VersionHistory`.
      rules: rules of the queue of versions.
      reader_expiry_secs: time after which an explorer counts as dead that has not acknowledged.
      on_added: called in a thread with each version once it is offered.

    Attributes:
      address: `host:port` where calls are answered.
    """

    def __init__(
        self,
        params: Params,
        *,
        host: str,
        secret: str,
        chain: str,
        expected: DeviceRegions = (),
        keep: int = 1,
        evaluated_every: int = 0,
        rules: QueueRules = QueueRules(),  # noqa: B008
        reader_expiry_secs: float = 600.0,
        on_added: Callable[[int, AddedVersion], None] = lambda version, added: None,
    ) -> None:
        manifest = plan_manifest(params, expected)
        history = VersionHistory(
            chain,
            jax.process_index(),
            manifest.itemsizes,
            keep,
            evaluated_every=evaluated_every,
        )
        where = f"explorers that call {host}"
        super().__init__(Cutter(manifest, params), history, where, rules)
        self._reader_expiry_secs, self._on_added = reader_expiry_secs, on_added
        desk = CallHandlers(
            AskManifest.answered_by(lambda call: manifest),
            AskUpdate.answered_by(self._update),
            AskArtifact.answered_by(lambda call: self.history.artifact(call.key)),
            FetchBlocks.answered_by(self._blocks),
            Acknowledge.answered_by(
                lambda call: self.history.acknowledge(call.reader, call.version)
            ),
            CloseLine.answered_by(lambda call: self.history.forget(call.reader)),
        )
        self._server = RpcServer(desk, 0, host, _THREADS, secret)
        self.address = address_of(host, self._server.port)

    def close(self) -> None:
        """Stops offering, lets explorers finish for a while, and frees all memory."""
        self._queue.close()
        deadline = time.monotonic() + _CLOSE_SECS
        while self.history.busy() and time.monotonic() < deadline:
            time.sleep(_POLL_SECS)
        self._server.close()
        self.history.close()

    def _offer(self, version: int, cut: CutVersion) -> None:
        self._on_added(version, self._added(version, cut))

    def _update(self, call: AskUpdate) -> WeightsUpdate | None:
        offer = self.history.offer(
            call.exactly,
            call.at_least,
            call.timeout_secs,
            held=call.held,
            reader=call.reader,
            expiry_secs=self._reader_expiry_secs,
        )
        return None if offer is None else WeightsUpdate(*offer)

    def _blocks(self, call: FetchBlocks) -> list[bytes]:
        return [bytes(self.history.payload(name)) for name in call.names]


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
