"""A search for streaming runs that break the bound, come to a halt, or lose a group."""

import collections

import pytest

from rl_sync.messages.events import TOO_STALE
from tests.simulation.streaming_world import World


def search(seeds):
    """Runs a world for each seed; returns how often each thing happened."""
    seen = collections.Counter()
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except AssertionError as error:
            raise AssertionError(f"World({seed}).run(): {error}") from error
        ids = [getattr(one, "lease_id", one) for groups in world.trained for one in groups]
        assert len(ids) == len({*ids}) == world.steps * world.generated, "trained on twice"
        state = world.state
        assert TOO_STALE not in state.dropped, "something was generated in vain"
        assert state.trained == world.steps * world.needed
        seen.update(state.dropped.keys())
        seen.update(runs=1, streams=world.streams)
    return seen


@pytest.mark.nightly
def test_streamed_groups_meet_their_deadlines_and_nobody_waits_for_ever():
    seen = search(range(150))
    for reason in ("lease expired", "its explorer died", "no spread", "environment failure"):
        assert seen[reason] > 10
    assert seen["runs"] - seen["streams"] > 50, "some runs have rollouts of a budget"


@pytest.mark.nightly
def test_the_same_in_thousands_of_runs():
    search(range(150, 3_000))
