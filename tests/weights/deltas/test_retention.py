"""Artifacts in a directory are kept as long as a reader may need them."""

from __future__ import annotations

from rl_sync.weights.deltas.artifact import FULL
from rl_sync.weights.deltas.retention import VersionRetention, kept_versions
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


def test_the_version_to_evaluate_stays_until_the_next_one_is_there():
    kept, stayed = [], []
    for version in range(12):
        kept = kept_versions([*kept, version], 1, 4)
        stayed.append(kept)
    assert stayed[:6] == [[0], [0, 1], [0, 2], [0, 3], [4], [4, 5]]
    assert stayed[-2:] == [[8, 10], [8, 11]]


def test_the_first_version_after_a_step_that_is_not_published_is_the_one_to_evaluate():
    kept = []
    for version in (3, 6, 9, 12):
        kept = kept_versions([*kept, version], 1, 5)
    assert kept == [12]
    assert kept_versions([6, 9], 1, 5) == [6, 9]


def test_without_evaluations_only_the_newest_versions_stay():
    assert kept_versions(range(8), 3) == [5, 6, 7]
    assert kept_versions([], 3, 4) == []


def test_files_of_the_version_to_evaluate_stay_with_the_way_to_them():
    rules = VersionRetention(1, evaluated_every=4)
    whole = rules.unneeded(STORED, [], deltas=False)
    assert {one.version for one in whole} == {0, 1, 2, 3, 5, 6}
    assert {one.version for one in rules.unneeded(STORED, [], deltas=True)} == {0, 1, 2, 3}
