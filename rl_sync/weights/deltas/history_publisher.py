"""The trainer's half of every transfer by artifacts: versions are cut, and enter its history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Shaped, UInt32

from rl_sync.types import Params
from rl_sync.weights.background_publisher import BackgroundPublisher, QueueRules
from rl_sync.weights.deltas.encoding import Bytes
from rl_sync.weights.deltas.history import AddedVersion, VersionHistory
from rl_sync.weights.digest import digest_words, to_text
from rl_sync.weights.parts import Cutter


class CutVersion(NamedTuple):
    """A version on the devices: copies of its parts, by number, and its digest."""

    parts: Mapping[int, Shaped[Array, "*part"]]
    digest: UInt32[Array, " 2"]


class HistoryPublisher:
    """Adds versions to a history in its own thread; the trainer only pays for a copy on device.

    Subclasses carry the artifacts of the history to explorers.

    Args:
      cutter: cuts versions into parts.
      history: the versions, with these parts.
      where: see `BackgroundPublisher`.
      rules: rules of the queue of versions.

    Attributes:
      history: the versions.
    """

    def __init__(
        self,
        cutter: Cutter,
        history: VersionHistory,
        where: str,
        rules: QueueRules,
    ) -> None:
        self._cutter, self.history = cutter, history
        self._queue: BackgroundPublisher[CutVersion] = BackgroundPublisher(
            self._offer, where, rules, awaited=lambda cut: cut.parts
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
        return self.history.add(version, lambda: to_text(cut.digest), _on_host(cut.parts))


def _on_host(parts: Mapping[int, Shaped[Array, "*part"]]) -> dict[int, Bytes]:
    """Returns the bytes of each part; on a CPU, the part's own memory."""
    return {
        number: np.ascontiguousarray(np.asarray(part)).reshape(-1).view(np.uint8)
        for number, part in parts.items()
    }
