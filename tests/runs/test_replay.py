"""A run whose steps train on groups again, drawn by their priority."""

from __future__ import annotations

import collections

import pytest

from tests.runs.conftest import flags

pytestmark = pytest.mark.gate

FLAGS = (
    *flags("asynchronous"),
    "--config.sync.max_staleness=3",
    "--config.replay.sampler=prioritized",
    "--config.replay.priority=length",
    "--config.replay.times_sampled=2",
    "--config.replay.max_size=20",
)


def test_steps_train_on_groups_again_within_the_bound_and_each_lease_ends_once(memory_runs):
    run = memory_runs(*FLAGS)
    uses = collections.Counter(group["lease_id"] for s in run.consumed for group in s["groups"])
    # Where explorers are slow, every group is used twice.
    assert max(uses.values()) == 2
    for step in run.consumed:
        assert len({group["lease_id"] for group in step["groups"]}) == 6
        assert min(run.versions(step)) >= step["step"] - 1 - 3
    trained, dropped = run.leases("trained"), run.leases("dropped")
    assert trained == uses
    assert not trained & dropped
    balance = run.ledger[-1]
    assert balance["trained"] == len(uses)
    ended = balance["trained"] + sum(balance["dropped"].values())
    assert balance["leased"] == ended + balance["buffered"] + balance["generating"]
