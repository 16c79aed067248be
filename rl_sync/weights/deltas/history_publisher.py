"""The trainer's half of every transfer by artifacts: versions are cut, and enter its history.

On GPUs each version is compared with the one before on the devices, so that only changes cross to
the host. Compiled for a TPU, the comparison makes temporary arrays of ten times the version's size,
and the memory of a CPU is the host's: there, the history compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jaxtyping import Array, UInt32

from rl_sync.models.platform import Platform, platform
from rl_sync.types import Params
from rl_sync.weights.background_publisher import BackgroundPublisher, QueueRules
from rl_sync.weights.deltas.device_changes import (
    DeviceChanges,
    Parts,
    device_changes,
    fetched,
    runs_needed,
)
from rl_sync.weights.deltas.encoding import Bytes, ChangedElements
from rl_sync.weights.deltas.history import AddedVersion, VersionHistory
from rl_sync.weights.digest import digest_words, to_text
from rl_sync.weights.parts import Cutter


class CutVersion(NamedTuple):
    """A version on the devices.

    Attributes:
      parts: copies of its parts.
      digest: its digest.
      base: parts of the version that it was compared with; None if it was compared with none.
      changes: what differs from there.
    """

    parts: Parts
    digest: UInt32[Array, " 2"]
    base: Parts | None
    changes: Mapping[int, DeviceChanges]


class HistoryPublisher:
    """Adds versions to a history in its own thread; the trainer only pays for work on the devices.

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
        self._compares = history.encodes and compares_on(platform())
        # The newest version that was handed over, and the newest in the history: usually the same.
        self._handed: Parts | None = None
        self._held: Parts | None = None
        self._runs: Mapping[int, int] = {}
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
        parts, base = self._cutter.cut(params), self._handed
        # Compared here, since in the thread this would wait for steps that are dispatched already.
        changes = {} if base is None else device_changes(parts, base, self._runs)
        if self._compares:
            self._handed = parts
        self._queue.hand_over(version, CutVersion(parts, digest_words(params), base, changes))

    def _offer(self, version: int, cut: CutVersion) -> None:
        """Adds a version, and makes it available; called in the thread."""
        raise NotImplementedError

    def _added(self, version: int, cut: CutVersion) -> AddedVersion:
        given = self._fetched(cut)
        added = self.history.add(version, lambda: to_text(cut.digest), given)
        if self._compares:
            if self._held is None:  # The programs compile here, not when the trainer publishes.
                device_changes(cut.parts, cut.parts, self._runs)
            self._held = cut.parts
        return added

    def _fetched(self, cut: CutVersion) -> dict[int, Bytes | ChangedElements]:
        """Fetches a version to the host: whole parts, or their changes to the version before."""
        if self._held is None:
            return fetched(cut.parts, {})
        changes = cut.changes
        if cut.base is not self._held:  # Versions between them were skipped.
            changes = device_changes(cut.parts, self._held, self._runs)
        given = fetched(cut.parts, changes)
        self._runs = runs_needed(cut.parts, given)
        return given


def compares_on(name: Platform) -> bool:
    """Says whether versions are compared on devices of a platform, which keep the last one."""
    return name == "gpu"
