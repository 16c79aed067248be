"""The trainer's half of every transfer by artifacts: versions are cut, and enter its history."""

from __future__ import annotations

from typing import Any

import jax

from rl_sync.types import Params
from rl_sync.weights.background_publisher import BackgroundPublisher
from rl_sync.weights.cells import DeviceRegions
from rl_sync.weights.deltas.history import AddedVersion, VersionHistory
from rl_sync.weights.deltas.part_bytes import CutVersion, on_host
from rl_sync.weights.digest import digest_words, to_text
from rl_sync.weights.parts import Cutter, plan_manifest


class HistoryPublisher:
    """Adds versions to a history in its own thread; the trainer only pays for a copy on device.

    Subclasses carry the artifacts of the history to explorers.

    Args:
      params: abstract params in the trainer's shardings.
      chain: id of this publisher, the same in all processes of the trainer.
      where: see `BackgroundPublisher`.
      expected: regions that explorers are expected to hold; see `plan_manifest`.
      keep, deltas: see `VersionHistory`.
      queue: `may_skip`, `timeout_secs`, `agree` and `agree_in_thread` of `BackgroundPublisher`.

    Attributes:
      history: the versions.
    """

    def __init__(
        self,
        params: Params,
        chain: str,
        where: str,
        *,
        expected: DeviceRegions = (),
        keep: int = 1,
        deltas: bool = True,
        **queue: Any,
    ) -> None:
        self._manifest = plan_manifest(params, expected)
        self._cutter = Cutter(self._manifest, params)
        self.history = VersionHistory(
            chain, jax.process_index(), self._manifest.itemsizes, keep, deltas=deltas
        )
        self._queue: BackgroundPublisher[CutVersion] = BackgroundPublisher(
            self._offer, where, awaited=lambda cut: cut.parts, **queue
        )

    def publish(self, version: int, params: Params) -> None:
        """Cuts `params` into parts on the devices, without waiting; see `ends_interface.Publisher`.

        Raises:
          ValueError: `params` does not match the plan.
          WeightsTimeoutError: an earlier version still waits.
          WeightsTransferError: an earlier version could not be offered.
        """
        self._queue.hand_over(version, CutVersion(self._cutter.cut(params), digest_words(params)))

    def _offer(self, version: int, cut: CutVersion) -> None:
        """Adds a version, and makes it available; called in the thread."""
        raise NotImplementedError

    def _added(self, version: int, cut: CutVersion) -> AddedVersion:
        return self.history.add(version, lambda: to_text(cut.digest), on_host(cut.parts))
