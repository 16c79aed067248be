"""Artifacts in a directory are kept as long as a reader may need them."""

from __future__ import annotations

from rl_sync.weights.deltas.artifact import FULL
from rl_sync.weights.deltas.retention import VersionRetention
from rl_sync.weights.deltas.version_files import StoredArtifact

FULLS = [0, 3, 6]
STORED = [
    StoredArtifact("run", "chain", version, base, "", "", [], 1, 1, [], "")
    for version in range(8)
    for base in ([FULL] if version in FULLS else []) + ([version - 1] if version else [])
]


def names(keep, marked, **how):
    found = VersionRetention(keep).unneeded(STORED, marked, deltas=True, **how)
    return [f"{'full' if one.base == FULL else 'delta'} {one.version}" for one in found]


def test_whole_versions_are_kept_while_they_are_new_or_being_read():
    found = VersionRetention(2).unneeded(STORED, [4], deltas=False)
    assert {one.version for one in found} == {0, 1, 2, 3, 5}


def test_without_readers_the_way_to_the_oldest_wanted_version_stays():
    # Versions 4 to 7 may be asked for: their way begins with the full copy of 3.
    assert names(4, []) == ["full 0", "delta 1", "delta 2", "delta 3"]


def test_a_slow_reader_keeps_the_differences_from_its_version_unless_room_is_short():
    assert names(4, [1, 5]) == ["full 0", "delta 1"]
    assert names(4, [1, 5], tight=True) == ["full 0", "delta 1", "delta 2", "delta 3"]


def test_a_reader_that_has_nothing_yet_keeps_everything():
    assert names(4, [-1]) == []
