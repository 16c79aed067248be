"""Artifacts make a version beside the one that is held, which stays as it is."""

from __future__ import annotations

import numpy as np
import pytest

from rl_sync.weights.deltas.applying import applied
from rl_sync.weights.deltas.artifact import HeldVersion
from rl_sync.weights.deltas.encoding import EncodingError
from tests.weights.deltas.made import (
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


def payloads_of(history, route) -> dict:
    return {name: history.payload(name) for one in route for name in one.blocks([*SIZES])}


def fetched(versions, have: int | None, keep: int = 1):
    """Returns the way from a version to the newest one, and its blocks."""
    history = history_of(*versions, keep=keep)
    held = None if have is None else HeldVersion("chain", have, digest_of(versions[have]))
    _, route = history.route(len(versions) - 1, held, "reader", 60)
    return route, payloads_of(history, route)


def make(route, held, payloads, sizes=SIZES):
    return applied(route, held, sizes, ITEMSIZES, payloads)


@pytest.mark.parametrize("share", [0, 0.02, 0.3, 1])
def test_one_difference_or_several_make_the_newest_version(share):
    first = parts_of(0)
    second = with_changes(first, 1, share)
    versions = [first, second, with_changes(second, 2, share)]
    for have in (0, 1, 2, None):
        route, payloads = fetched(versions, have)
        held = {} if have is None else versions[have]
        assert same(make(route, held, payloads), versions[-1])


def test_some_parts_are_made_without_the_others():
    versions = steps(3, 0.1)
    route, payloads = fetched(versions, 0)
    assert len(route) == 2
    mine = {part: SIZES[part] for part in (0, 4)}
    made = make(route, {part: versions[0][part] for part in mine}, payloads, mine)
    assert same(made, {part: versions[-1][part] for part in mine})


def test_the_held_version_is_only_read_so_a_repetition_makes_the_same():
    versions = steps(3, 0.1)
    route, payloads = fetched(versions, 0)
    assert len(route) == 2
    held = {part: content.copy() for part, content in versions[0].items()}
    for content in held.values():
        content.flags.writeable = False
    for _ in range(2):
        made = make(route, held, payloads)
        assert same(made, versions[-1])
        assert same(held, versions[0])
    assert not any(np.shares_memory(made[part], held[part]) for part in made)


def test_a_failure_in_the_middle_leaves_the_held_version_as_it_was():
    versions = steps(3, 0.1)
    route, payloads = fetched(versions, 0)
    assert len(route) == 2
    held = {part: content.copy() for part, content in versions[0].items()}
    for name in payloads:
        broken = {**payloads, name: bytes(payloads[name])[:-1]}
        with pytest.raises(EncodingError):
            make(route, held, broken)
        assert same(held, versions[0])
    assert same(make(route, held, payloads), versions[-1])


def test_nothing_changes_if_there_is_nothing_to_apply():
    held = parts_of(0)
    made = make([], held, {})
    assert same(made, held)
    made[0][:] = 0
    assert same(held, parts_of(0))


def test_a_missing_block_is_named():
    versions = steps(2, 0.1)
    route, payloads = fetched(versions, 0)
    name = next(name for name in payloads if name.part == 4)
    del payloads[name]
    with pytest.raises(EncodingError, match=f"block {name.number} of part 4 is missing"):
        make(route, versions[0], payloads)


def test_a_list_that_does_not_fit_the_parts_is_refused():
    versions = steps(2, 0.1)
    route, payloads = fetched(versions, 0)
    sizes = {**SIZES, 2: SIZES[2] + 1}
    with pytest.raises(EncodingError, match=r"part 2 of version 1 from 0 has 1 blocks, not 2"):
        make(route, versions[0], payloads, sizes)
