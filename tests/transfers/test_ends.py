"""The table of transfers, and the modules that it names."""

from __future__ import annotations

import pytest

from rl_sync.schedule import MODES, resolve
from rl_sync.transfer import TRANSFERS
from rl_sync.transfers.ends import HANDED_OVER, Ends, ends_of

NAMED = [name for name, one in TRANSFERS.items() if not one.fallback]


@pytest.mark.parametrize("name", TRANSFERS)
def test_every_transfer_has_a_module_with_its_two_ends(name):
    ends = ends_of(name)
    assert isinstance(ends, Ends)
    assert ends.trainer.__module__ == ends.explorer.__module__ == f"rl_sync.transfers.{name}"


def test_where_all_share_a_process_weights_of_a_joint_transfer_are_handed_over():
    shared = {name: ends_of(name, in_one_process=True).trainer.__module__ for name in NAMED}
    assert shared == {
        "collective": f"rl_sync.transfers.{HANDED_OVER}",
        "checkpoint": "rl_sync.transfers.checkpoint",
    }


def test_what_a_mode_or_a_fallback_names_is_a_transfer_that_can_always_be_had():
    named = {mode.transfer for mode in MODES.values()}
    named |= {one.fallback for one in TRANSFERS.values() if one.fallback}
    assert named <= set(NAMED)


def test_the_memory_that_versions_take_grows_with_them_up_to_a_bucket_where_there_is_one():
    exact, latest = resolve("synchronous"), resolve("asynchronous")
    size = 10**9
    held = {
        name: [
            ends_of(name).published_bytes(size, one, deltas)
            for deltas in (False, True)
            for one in (exact, latest)
        ]
        for name in TRANSFERS
    }
    bucket = 256 * 2**20
    assert held == {
        "collective": 2 * [bucket, bucket + size],
        "checkpoint": [2 * size, 5 * size, 4 * size, 5 * size],
        "server": [size, size, 3 * size, 3 * size],
    }
    arriving = {
        name: [ends_of(name).arriving_bytes(size, deltas) for deltas in (False, True)]
        for name in TRANSFERS
    }
    assert arriving == {
        "collective": [bucket, bucket],
        "checkpoint": [size, 3 * size],
        "server": [size // 2, 3 * size],
    }
