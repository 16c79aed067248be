"""VersionRetention of versions as files: which artifacts of a directory a reader may still need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from rl_sync.weights.deltas.artifact import FULL
from rl_sync.weights.deltas.version_files import StoredArtifact


def kept_versions(versions: Iterable[int], newest: int, evaluated_every: int = 0) -> list[int]:
    """Returns the published versions that explorers may still request, in order.

    Args:
      versions: versions that are still there, with the newest one.
      newest: number of newest versions to keep.
      evaluated_every: trainer steps between two evaluations by explorers; 0 for none. The first
        version after so many steps is requested by its number, so it stays until the next such
        version is there.
    """
    there = sorted({*versions})
    kept = {*there[-newest:]}
    if evaluated_every and there:
        begun = there[-1] - there[-1] % evaluated_every
        kept.add(min(version for version in there if version >= begun))
    return sorted(kept)


class VersionRetention(NamedTuple):
    """Rules for the artifacts of a directory.

    Attributes:
      keep: number of newest versions that readers may ask for.
      full_every: number of versions between two full copies.
      reader_expiry_secs: time after which a reader counts as dead.
      evaluated_every: see `kept_versions`.
    """

    keep: int = 3
    full_every: int = 20
    reader_expiry_secs: float = 600.0
    evaluated_every: int = 0

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
        versions = [one.version for one in stored]
        wanted = kept_versions(versions, self.keep, self.evaluated_every)
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
