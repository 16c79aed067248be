"""VersionRetention of versions as files: which artifacts of a directory a reader may still need."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from rl_sync.weights.deltas.artifact import FULL
from rl_sync.weights.deltas.version_files import StoredArtifact


class VersionRetention(NamedTuple):
    """Rules for the artifacts of a directory.

    Attributes:
      keep: number of newest versions that readers may ask for.
      full_every: number of versions between two full copies.
      reader_expiry_secs: time after which a reader counts as dead.
    """

    keep: int = 3
    full_every: int = 20
    reader_expiry_secs: float = 600.0

    def unneeded(
        self,
        stored: Sequence[StoredArtifact],
        marked: Collection[int],
        *,
        deltas: bool,
        tight: bool = False,
    ) -> list[StoredArtifact]:
        """Returns the artifacts that no reader needs any more.

        Args:
          stored: all artifacts.
          marked: versions that living readers have, -1 for none; without differences, those that
            they are reading.
          deltas: whether the publisher writes differences.
          tight: whether room is short: then a slow reader has to take a full copy.
        """
        wanted = sorted({one.version for one in stored})[-self.keep :]
        if not deltas:
            return [one for one in stored if one.version not in {*wanted, *marked}]
        fulls = [one.version for one in stored if one.base == FULL]
        anchor = max((full for full in fulls if wanted and full <= wanted[0]), default=-1)
        slowest = min(marked, default=anchor)

        def is_old(one: StoredArtifact) -> bool:
            if one.base == FULL:
                return one.version < (anchor if tight else min(anchor, max(slowest, 0)))
            return one.version <= (anchor if tight else min(anchor, slowest))

        return [one for one in stored if is_old(one)]
