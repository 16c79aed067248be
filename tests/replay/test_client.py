"""The client alone, without a server."""

import contextlib
import time

import pytest

from rl_sync.replay.client import ReplayClient
from rl_sync.replay.replay_interface import ReplayTimeoutError


@pytest.fixture
def looks(monkeypatch):
    """Records the client's looks into empty tables."""
    looks = []

    def look(client: ReplayClient, table: str) -> int:
        looks.append(table)
        return 0

    monkeypatch.setattr(ReplayClient, "_drawable", look)
    monkeypatch.setattr(ReplayClient, "_state_of", lambda client, table: "empty")
    return looks


def wait_for(client: ReplayClient, secs: float) -> None:
    with contextlib.suppress(ReplayTimeoutError):
        client.sample("queue", 1, timeout_secs=secs)


def test_who_has_waited_for_seconds_looks_less_often_than_at_first(looks):
    with ReplayClient("127.0.0.1:1") as client:
        for _ in range(3):  # The trainer waits in short turns.
            wait_for(client, 0.05)
            time.sleep(0.9)
        del looks[:]
        wait_for(client, 0.5)
    # Every 50 ms by now; it would be 100 looks, had it gone on every 5 ms.
    assert len(looks) <= 15
