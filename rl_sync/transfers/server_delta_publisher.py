"""The trainer's end of the server transfer by differences: it encodes versions and offers them."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax

from rl_sync.addresses import address_of
from rl_sync.cluster.rpc import CallHandlers, RpcServer
from rl_sync.transfers.server_delta_calls import (
    Acknowledge,
    AskArtifact,
    AskUpdate,
    FetchBlocks,
    WeightsUpdate,
)
from rl_sync.transfers.server_publisher import AskManifest, CloseLine
from rl_sync.types import Params
from rl_sync.weights.agreement import Agree, alone
from rl_sync.weights.background_publisher import BackgroundPublisher
from rl_sync.weights.cells import DeviceRegions
from rl_sync.weights.deltas.history import AddedVersion, VersionHistory
from rl_sync.weights.deltas.part_bytes import (
    CutVersion,
    itemsizes_of,
    on_host,
)
from rl_sync.weights.digest import digest_words, to_text
from rl_sync.weights.parts import (
    Cutter,
    first_difference,
    leaves_of,
    plan_manifest,
)

_POLL_SECS = 0.1
_CLOSE_SECS = 5.0
_THREADS = 64


class DeltaPublisher:
    """Offers versions as differences and full copies, and answers explorers' calls.

    Args:
      params: abstract params in the trainer's shardings.
      host: interface at which explorers reach this process.
      secret: the run's secret.
      chain: id of this publisher, the same in all processes of the trainer.
      expected: regions that explorers are expected to hold; see `plan_manifest`.
      keep: number of newest versions that are offered.
      reader_expiry_secs: time after which an explorer counts as dead that has not acknowledged.
      on_added: called in a thread with each version once it is offered.
      queue: arguments of `BackgroundPublisher`.

    Attributes:
      address: `host:port` where calls are answered.
      history: the versions.
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
        reader_expiry_secs: float = 600.0,
        on_added: Callable[[int, AddedVersion], None] = lambda version, added: None,
        may_skip: bool = False,
        timeout_secs: float = 300.0,
        agree: Agree = alone,
        agree_in_thread: Agree = alone,
    ) -> None:
        self._manifest = plan_manifest(params, expected)
        self._cutter = Cutter(self._manifest, params)
        holder = jax.process_index()
        self.history = VersionHistory(chain, holder, itemsizes_of(self._manifest), keep)
        self._reader_expiry_secs, self._on_added = reader_expiry_secs, on_added
        desk = CallHandlers(
            AskManifest.answered_by(lambda call: self._manifest),
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
        self._queue: BackgroundPublisher[CutVersion] = BackgroundPublisher(
            self._add,
            self.address,
            may_skip=may_skip,
            timeout_secs=timeout_secs,
            agree=agree,
            agree_in_thread=agree_in_thread,
            awaited=lambda cut: cut.parts,
        )

    def publish(self, version: int, params: Params) -> None:
        """Cuts `params` into parts on the devices, without waiting; see `ends_interface.Publisher`.

        Raises:
          ValueError: `params` does not match the plan.
          WeightsTimeoutError: an earlier version still waits to be encoded.
          WeightsTransferError: an earlier version could not be encoded.
        """
        if (pair := first_difference(leaves_of(params), self._manifest.leaves)) is not None:
            raise ValueError(
                f"The parameters have {pair[0]} where {pair[1]} was planned: make the publisher"
                " from the same model."
            )
        arrays = CutVersion(self._cutter.cut(params), digest_words(params))
        self._queue.hand_over(version, arrays)

    def close(self) -> None:
        """Stops offering, lets explorers finish for a while, and frees all memory."""
        self._queue.close()
        deadline = time.monotonic() + _CLOSE_SECS
        while self.history.busy() and time.monotonic() < deadline:
            time.sleep(_POLL_SECS)
        self._server.close()
        self.history.close()

    def _add(self, version: int, arrays: CutVersion) -> None:
        added = self.history.add(version, lambda: to_text(arrays.digest), on_host(arrays.parts))
        self._on_added(version, added)

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
