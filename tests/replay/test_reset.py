"""Tables that somebody else empties while a client draws from them."""

import time

import numpy as np
import pytest

from rl_sync.replay.client import ReplayClient
from rl_sync.replay.replay_interface import ReplayError, ReplayTimeoutError

TABLE = "long_queue"


@pytest.fixture(params=[pytest.param("reverb", marks=pytest.mark.gate), "embedded"])
def clients(request, servers):
    """Two clients of one server: of the run, and of somebody else."""
    address = servers[request.param].address
    with ReplayClient(address) as ours, ReplayClient(address) as others:
        ours.reset(TABLE)
        yield ours, others
        ours.reset(TABLE)


def insert(client, count):
    items = [{"x": np.arange(3)} for _ in range(count)]
    client.insert_many(TABLE, items, timeout_secs=10.0)


def test_a_table_that_another_client_empties_is_noticed_at_once(clients):
    ours, others = clients
    insert(ours, 7)
    assert len(ours.sample(TABLE, 2, timeout_secs=5.0)) == 2
    others.reset(TABLE)
    started = time.monotonic()
    with pytest.raises(ReplayError, match=r"has lost its items: .* 7 and 2\. Another process") as e:
        ours.sample(TABLE, 5, timeout_secs=30.0)
    assert "Reset" in str(e.value)
    assert time.monotonic() - started < 5.0


def test_it_is_noticed_also_where_nothing_was_drawn_yet_or_new_items_have_come(clients):
    ours, others = clients
    insert(ours, 3)
    ours.sample(TABLE, 3, timeout_secs=5.0)
    others.reset(TABLE)
    insert(ours, 5)  # More than before.
    with pytest.raises(ReplayError, match="lost its items"):
        ours.sample(TABLE, 6, timeout_secs=2.0)


def test_a_client_that_empties_its_table_itself_goes_on(clients):
    ours, _ = clients
    insert(ours, 4)
    assert len(ours.sample(TABLE, 2, timeout_secs=5.0)) == 2
    ours.reset(TABLE)
    with pytest.raises(ReplayTimeoutError):
        ours.sample(TABLE, 1, timeout_secs=0.2)
    insert(ours, 1)
    assert len(ours.sample(TABLE, 1, timeout_secs=5.0)) == 1
