"""Checkpoints of replay servers: a server that was killed begins with the newest one."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import numpy as np
import pytest

from rl_sync.cluster.ports import free_ports
from rl_sync.replay import stored_items
from rl_sync.replay.client import ReplayClient
from rl_sync.replay.replay_interface import ReplayError, ReplayUnavailableError
from rl_sync.replay.server_process import ReplayServerError, start_server
from rl_sync.replay.tables import TableSpec, queue
from tests.replay.conftest import START_TIMEOUT_SECS

TABLES = [queue("queue", 4), queue("twice", 8, sampler="uniform", times=2), TableSpec("other", 9)]
HOST = "127.0.0.1"


@pytest.fixture(params=["embedded", pytest.param("reverb", marks=pytest.mark.nightly)])
def started(request, tmp_path):
    """Starts servers at one port, with the checkpoints of one directory."""
    (port,) = free_ports(HOST, 1)
    servers = []

    def start(**changed):
        arguments = {"log_path": tmp_path / "log", "checkpoints": tmp_path / "saved", **changed}
        server = start_server(
            request.param, TABLES, port, start_timeout_secs=START_TIMEOUT_SECS, **arguments
        )
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop(1.0)


def killed(server):
    os.killpg(server.popen.pid, signal.SIGKILL)
    server.popen.wait(20)


def reconnect(client):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(ReplayUnavailableError):
            return client.info()
        time.sleep(0.1)


def drawn(client, table, count):
    return sorted(int(one.columns["i"]) for one in client.sample(table, count, timeout_secs=10))


def fill(client, table, *numbers):
    for number in numbers:
        client.insert(table, {"i": np.int32(number)}, timeout_secs=10)


@pytest.mark.gate
def test_a_server_that_was_killed_has_the_items_of_its_newest_checkpoint(started):
    server = started()
    with ReplayClient(server.address, may_restart=True) as client:
        fill(client, "queue", 1, 2)
        client.checkpoint()
        assert drawn(client, "queue", 1) == [1]
        fill(client, "queue", 3)
        fill(client, "twice", 4)
        assert drawn(client, "twice", 1) == [4]
        assert client.checkpoint()
        assert drawn(client, "queue", 1) == [2]
        fill(client, "queue", 5)
        assert client.breaks == 0
        killed(server)
        with pytest.raises(ReplayUnavailableError):
            client.sample("queue", timeout_secs=5)
        started()
        reconnect(client)
        assert client.breaks > 0
        assert drawn(client, "queue", 2) == [2, 3]
        assert drawn(client, "twice", 1) == [4]
        sizes = {name: table.current_size for name, table in client.info().items()}
        assert sizes == {"queue": 0, "twice": 0, "other": 0}
        fill(client, "queue", 6, 7, 8, 9)
        assert drawn(client, "queue", 4) == [6, 7, 8, 9]


@pytest.mark.gate
def test_a_client_of_a_server_that_is_not_to_restart_says_that_items_are_lost(started):
    server = started()
    with ReplayClient(server.address) as client:
        fill(client, "queue", 1, 2)
        assert drawn(client, "queue", 1) == [1]
        killed(server)
        with pytest.raises(ReplayUnavailableError):
            client.sample("queue", timeout_secs=5)
        started()
        reconnect(client)
        with pytest.raises(ReplayError, match="has lost its items"):
            client.sample("queue", timeout_secs=5)


@pytest.fixture
def embedded(tmp_path):
    """Starts the embedded server with the checkpoints of one directory, or without."""

    def start(checkpoints=tmp_path):
        return start_server(
            "embedded",
            TABLES,
            0,
            log_path=tmp_path / "log",
            checkpoints=checkpoints,
            start_timeout_secs=START_TIMEOUT_SECS,
        )

    return start


@pytest.mark.gate
def test_a_damaged_checkpoint_is_named(embedded, tmp_path):
    with embedded() as server, ReplayClient(server.address) as client:
        fill(client, "queue", 1)
        path = tmp_path / stored_items.NAME
        assert client.checkpoint() == str(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ReplayServerError, match=f"{path} is not whole"):
        embedded()


@pytest.mark.gate
def test_a_server_without_a_directory_or_without_room_refuses_a_checkpoint(embedded, tmp_path):
    (tmp_path / "checkpoint.tmp").mkdir()
    for directory, why in ((None, "No directory of checkpoints"), (tmp_path, "cannot be written")):
        with (
            embedded(directory) as server,
            ReplayClient(server.address) as client,
            pytest.raises(ReplayError, match=why),
        ):
            client.checkpoint()
