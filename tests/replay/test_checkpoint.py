"""Saving a replay buffer, and starting another one from the checkpoint."""

import numpy as np
import pytest

from rl_sync.replay.client import ReplayClient
from rl_sync.replay.embedded import EmbeddedReplay
from rl_sync.replay.replay_interface import ReplayError, ReplayUnavailableError
from rl_sync.replay.server_process import ReplayServerError, start_server
from rl_sync.replay.tables import TableSpec, queue

TABLES = [queue("queue", 3), TableSpec("prioritized", 10, sampler="prioritized")]


def fill(replay):
    for name in ("queue", "prioritized"):
        replay.reset(name)
    replay.insert_many("queue", [{"i": np.int32(i)} for i in range(3)], timeout_secs=5)
    replay.sample("queue", 1, timeout_secs=5)
    strings = np.array(["kept"])
    replay.insert("prioritized", {"s": strings}, priority=2.0, timeout_secs=5)
    replay.insert("prioritized", {"s": np.array(["never"])}, priority=0.0, timeout_secs=5)


def check(replay):
    """Checks that the restored buffer continues like the saved one, its rate limiter included."""
    [one] = replay.sample("prioritized", 1, timeout_secs=5)
    assert one.columns["s"].tolist() == [b"kept"]
    assert (one.priority, one.table_size) == (2.0, 2)
    replay.insert("queue", {"i": np.int32(3)}, timeout_secs=5)
    with pytest.raises(TimeoutError):
        replay.insert("queue", {"i": np.int32(4)}, timeout_secs=0.1)
    drawn = replay.sample("queue", 4, timeout_secs=5)
    assert [int(one.columns["i"]) for one in drawn] == [1, 2, 3, 4]


@pytest.mark.parametrize("backend", ["reverb", "embedded"])
def test_a_server_goes_on_from_a_checkpoint(backend, servers, tables, tmp_path):
    with ReplayClient(servers[backend].address) as client:
        fill(client)
        path = client.checkpoint()
    with (
        start_server(
            backend,
            tables,
            0,
            log_path=tmp_path / "log",
            checkpoint_dir=tmp_path,
            restore=path,
            start_timeout_secs=60,
        ) as server,
        ReplayClient(server.address) as client,
    ):
        check(client)
        assert client.checkpoint().startswith(str(tmp_path))

        client.insert("queue", {"i": np.int32(0)}, timeout_secs=5)
        server.popen.kill()
        server.stop()
        with pytest.raises(ReplayUnavailableError, match="cannot be reached"):
            client.sample("queue", 1, timeout_secs=5)
        with pytest.raises(ReplayUnavailableError, match="did not confirm 1 item"):
            client.insert("queue", {"i": np.int32(0)}, timeout_secs=5)
        with pytest.raises(ReplayUnavailableError):
            client.info()


def test_an_embedded_buffer_goes_on_from_a_checkpoint(tmp_path):
    saved = EmbeddedReplay(TABLES, checkpoint_dir=tmp_path)
    fill(saved)
    check(EmbeddedReplay(TABLES, restore=saved.checkpoint()))


@pytest.mark.parametrize("backend", ["reverb", "embedded"])
def test_a_checkpoint_with_other_tables_is_refused(backend, servers, tmp_path):
    with ReplayClient(servers[backend].address) as client:
        path = client.checkpoint()
    with pytest.raises(ReplayServerError, match=r"status 97(.|\n)*table '"):
        start_server(
            backend, TABLES, 0, log_path=tmp_path / "log", restore=path, start_timeout_secs=60
        )


def test_a_wrong_checkpoint_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing of the kind")
    for name in ("notes.txt", "absent"):
        with pytest.raises(ValueError, match=f"{name} is no checkpoint"):
            EmbeddedReplay(TABLES, restore=tmp_path / name)
    with pytest.raises(ReplayError, match="no folder for checkpoints"):
        EmbeddedReplay(TABLES).checkpoint()
