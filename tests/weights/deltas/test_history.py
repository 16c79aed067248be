"""The sender's history: which versions it offers, from where, and how long it keeps the blocks."""

from __future__ import annotations

import concurrent.futures
import time
from functools import partial

import numpy as np
import pytest

from rl_sync.weights.deltas.applying import applied
from rl_sync.weights.deltas.artifact import FULL, HeldVersion
from rl_sync.weights.deltas.history import VersionHistory
from tests.weights.deltas.made import (
    DENSE,
    ITEMSIZES,
    SIZES,
    digest_of,
    history_of,
    parts_of,
    same,
    steps,
    with_changes,
)

pytestmark = pytest.mark.usefixtures("small_blocks")

LONG_AGO = -1.0


def held(versions, number: int, chain: str = "chain") -> HeldVersion:
    return HeldVersion(chain, number, digest_of(versions[number]))


def held_bytes(history: VersionHistory) -> int:
    """Returns the bytes of the versions and differences in memory."""
    parts = [part for version in history._versions.values() for part in version.parts.values()]
    return sum(part.nbytes for part in parts) + sum(d.nbytes() for d in history._deltas.values())


def way(history, version, have, reader="reader", secs=60.0):
    """Returns the versions that lead to a version: `FULL` and itself for a full copy."""
    _, route = history.route(version, have, reader, secs)
    return [one.key.base for one in route] + [version]


def fetch(history, route, base) -> dict[int, np.ndarray]:
    """Fetches all blocks, and applies them."""
    assert all(history.artifact(one.key) == one for one in route)
    names = [name for one in route for name in one.blocks([*SIZES])]
    payloads = {name: bytes(history.payload(name)) for name in names}
    return applied(route, base, SIZES, ITEMSIZES, payloads)


def test_where_differences_are_off_each_version_is_a_full_copy_and_nothing_is_compared(monkeypatch):
    monkeypatch.setattr("rl_sync.weights.deltas.history.encode", None)
    versions = steps(3)
    history = VersionHistory("chain", 0, ITEMSIZES, deltas=False)
    for number, parts in enumerate(versions):
        added = history.add(number, partial(digest_of, parts), parts)
        assert added.delta is None
        assert added.dense_bytes == DENSE
        assert way(history, number, held(versions, max(number - 1, 0))) in ([FULL, number], [0])
    assert held_bytes(history) == DENSE, "only the newest version is held"


def test_a_new_receiver_gets_a_full_copy_and_one_that_follows_gets_differences():
    versions = steps(4)
    history = history_of(*versions)
    target, route = history.route(3, None, "new", 60)
    assert target == held(versions, 3)
    assert [one.key.base for one in route] == [FULL]
    assert route[0].nbytes() == DENSE
    assert same(fetch(history, route, {}), versions[3])
    target, route = history.route(3, held(versions, 1), "follows", 60)
    assert [(one.key.base, one.key.version) for one in route] == [(1, 2), (2, 3)]
    assert sum(one.nbytes() for one in route) < DENSE
    assert same(fetch(history, route, versions[1]), versions[3])


def test_a_receiver_that_has_the_version_gets_nothing():
    versions = steps(2)
    assert way(history_of(*versions), 1, held(versions, 1)) == [1]


def test_a_receiver_with_a_wrong_base_gets_a_full_copy():
    versions = steps(4)
    history = history_of(*versions[1:], first=1)
    assert way(history, 3, held(versions, 2)) == [2, 3]
    for wrong in (
        held(versions, 2, chain="of an earlier trainer"),
        held(versions, 3, chain="of an earlier trainer"),
        HeldVersion("chain", 2, digest_of(versions[1])),
        HeldVersion("chain", 3, digest_of(versions[2])),
        held(versions, 0),
        HeldVersion("chain", 7, "of the future"),
    ):
        assert way(history, 3, wrong) == [FULL, 3]


def test_each_version_is_added_with_what_it_cost():
    history = history_of()
    first, second = parts_of(0), with_changes(parts_of(0), 1, 0.1)
    added = history.add(0, partial(digest_of, first), first)
    assert (added.delta, added.dense_bytes) == (None, DENSE)
    assert added.attributes["changed_share"] == 1
    assert added.attributes["delta_bytes"] == DENSE
    added = history.add(1, partial(digest_of, second), second)
    changed = sum(
        np.count_nonzero((first[part] != second[part]).reshape(-1, ITEMSIZES[part]).any(1))
        for part in SIZES
    )
    elements = sum(SIZES[part] // ITEMSIZES[part] for part in SIZES)
    assert added.delta is not None
    assert (added.delta.changed, added.delta.elements) == (changed, elements)
    assert added.attributes["changed_share"] == changed / elements
    assert 0 < added.attributes["delta_bytes"] == added.delta.nbytes() < DENSE


def test_a_version_that_could_not_be_added_is_no_base_and_not_offered():
    versions = steps(4)
    history = history_of(versions[0])
    broken = {**versions[1], 0: versions[1][0][:-2], 9: versions[1][0]}
    with pytest.raises((ValueError, KeyError)):
        history.add(1, partial(digest_of, versions[1]), broken)
    assert history.versions() == [0]
    assert history.await_version(1, None, 0) is None
    assert way(history, 0, None) == [FULL, 0]
    added = history.add(2, partial(digest_of, versions[2]), versions[2])
    assert added.delta is not None
    assert added.delta.key.base == 0
    _, route = history.route(2, held(versions, 0), "reader", 60)
    assert [one.key.base for one in route] == [0]
    assert same(fetch(history, route, versions[0]), versions[2])


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_as_many_of_the_newest_versions_are_offered_as_are_in_use(keep):
    versions = steps(5)
    history = history_of(*versions, keep=keep)
    offered = list(range(5))[-keep:]
    assert history.versions() == offered
    for version in range(5):
        assert history.await_version(version, None, 0) == (version if version in offered else None)
        if version in offered:
            assert way(history, version, None) == [FULL, version]
            _, route = history.route(version, held(versions, 0), "reader", 60)
            assert len(route) == version
            assert same(fetch(history, route, versions[0]), versions[version])
        else:
            with pytest.raises(KeyError):
                history.route(version, None, "reader", 60)
    assert history.await_version(None, None, 0) == 4
    assert history.await_version(None, 4, 0) == 4
    assert history.await_version(None, 5, 0) is None


def test_who_waits_for_a_version_gets_it_once_it_is_there():
    versions = steps(3)
    history = history_of(versions[0])
    with concurrent.futures.ThreadPoolExecutor() as pool:
        exact = pool.submit(history.await_version, 2, None, 60)
        least = pool.submit(history.await_version, None, 1, 60)
        history.add(1, partial(digest_of, versions[1]), versions[1])
        assert least.result(60) == 1
        assert not exact.done()
        history.add(2, partial(digest_of, versions[2]), versions[2])
        assert exact.result(60) == 2


def test_what_a_receiver_fetches_stays_until_it_acknowledges():
    versions = steps(12, 0.3)
    history = history_of(*versions[:2])
    _, slow = history.route(1, held(versions, 0), "slow", 60)
    _, new = history.route(1, None, "new", 60)
    for number in range(2, 12):  # All others are fast.
        history.add(number, partial(digest_of, versions[number]), versions[number])
        history.acknowledge("fast", number)
        assert same(fetch(history, slow, versions[0]), versions[1])
        assert same(fetch(history, new, {}), versions[1])
    history.acknowledge("slow", 1)
    history.acknowledge("new", 1)
    for route in (slow, new):
        name = next(route[0].blocks([0]))
        with pytest.raises(KeyError, match=r"version 1.* is not kept any more"):
            history.payload(name)
        with pytest.raises(KeyError, match="not kept any more"):
            history.artifact(route[0].key)


def test_differences_stay_as_long_as_the_slowest_receiver_needs_them():
    versions = steps(5, 0.02)
    history = history_of(versions[0])
    history.acknowledge("slow", 0)
    for number in range(1, 5):
        history.add(number, partial(digest_of, versions[number]), versions[number])
        history.acknowledge("fast", number)
    assert way(history, 4, held(versions, 0), "slow") == [0, 1, 2, 3, 4]
    history.acknowledge("slow", 3)
    assert way(history, 4, held(versions, 3), "slow") == [3, 4]
    assert way(history, 4, held(versions, 2), "late") == [FULL, 4]


def test_nothing_is_kept_for_a_receiver_that_has_left():
    versions = steps(4, 0.02)
    history = history_of(*versions[:3])
    history.acknowledge("slow", 0)
    history.acknowledge("fast", 2)
    assert way(history, 2, held(versions, 1)) == [1, 2]
    history.forget("slow")
    assert way(history, 2, held(versions, 1)) == [FULL, 2]


def test_nothing_is_kept_for_a_receiver_that_does_not_acknowledge_in_time():
    versions = steps(3, 0.02)
    history = history_of(versions[0])
    _, dead = history.route(0, None, "dead", LONG_AGO)
    name = next(dead[0].blocks([0]))
    assert not history.busy()
    for number in (1, 2):
        history.add(number, partial(digest_of, versions[number]), versions[number])
    with pytest.raises(KeyError, match="not kept any more"):
        history.payload(name)


def test_a_receiver_may_leave_before_there_is_a_version():
    history = history_of()
    history.forget("early")
    history.acknowledge("of an earlier trainer", 7)
    history.add(8, partial(digest_of, parts_of(0)), parts_of(0))
    assert way(history, 8, None) == [FULL, 8]


def test_a_sender_is_busy_as_long_as_a_receiver_fetches():
    versions = steps(2)
    history = history_of(*versions)
    assert not history.busy()
    for end in (lambda: history.acknowledge("a", 1), lambda: history.forget("a")):
        history.route(1, None, "a", 60)
        history.route(1, None, "b", 60)
        end()
        assert history.busy()
        history.acknowledge("b", 1)
        assert not history.busy()


def test_differences_take_less_memory_than_a_full_copy_however_many_versions_there_are():
    versions = steps(30, 0.1)
    history, most = history_of(versions[0]), 0
    for number in range(1, 30):
        history.add(number, partial(digest_of, versions[number]), versions[number])
        assert held_bytes(history) < 2 * DENSE
        most = max(most, held_bytes(history))
        reachable = [
            have for have in range(number) if FULL not in way(history, number, held(versions, have))
        ]
        assert reachable == list(range(reachable[0], number))
    assert most > DENSE


def test_a_version_is_full_if_its_differences_would_be_as_large():
    first, other = parts_of(0), parts_of(1)
    assert way(history_of(first, other), 1, held([first], 0)) == [FULL, 1]


def test_time_that_encoding_takes_is_reported():
    versions = steps(2)
    history = history_of(versions[0])
    began = time.monotonic()
    added = history.add(1, partial(digest_of, versions[1]), versions[1])
    assert 0 < added.encode_secs <= time.monotonic() - began
