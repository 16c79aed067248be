"""Replay servers that a run starts, and those that a user has started."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from rl_sync.replay.client import ReplayClient
from rl_sync.replay.server_process import ServerProcess, start_server
from rl_sync.replay.tables import queue
from rl_sync.workdir import Workdir
from tests.runs.conftest import launch
from tests.runs.living import ended, processes_of


@pytest.mark.gate
def test_a_replay_server_that_cannot_start_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "empty"))
    process = launch("--config.replay.backend=reverb", workdir=tmp_path / "run")
    output = ended(process)
    assert process.returncode == 1
    failure = output[output.index("The run failed:") :]
    assert "--config.replay.backend=embedded" in failure
    assert processes_of(tmp_path / "run") == {}


@pytest.mark.nightly
def test_where_reverb_cannot_be_had_the_embedded_buffer_takes_its_place(tmp_path, monkeypatch):
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "empty"))
    process = launch("--config.trainer.steps=2", workdir=tmp_path / "run")
    output = ended(process)
    assert process.returncode == 0, output
    assert output.count("The run uses the embedded replay buffer") == 1
    record = json.loads(Workdir(tmp_path / "run").replay_backend.read_text())
    assert record["backend"] == "embedded"
    assert "Python 3.11" in record["why"]
    assert processes_of(tmp_path / "run") == {}


@pytest.fixture
def by_hand(tmp_path):
    """Starts a replay server as a user may do it, with a table of so many groups."""
    servers = []

    def start(max_size: int) -> ServerProcess:
        tables = [queue("groups", max_size)]
        server = start_server("embedded", tables, 0, log_path=tmp_path / f"{max_size}.log")
        server.wait_ready(30)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.mark.nightly
def test_a_server_started_by_hand_serves_a_run_and_outlives_it(by_hand, runs):
    server = by_hand(18)
    with ReplayClient(server.address) as replay:
        left_over = {"tokens": np.zeros(3, np.int32)}
        replay.insert("groups", left_over, timeout_secs=10)
        address = f"--config.replay.address={server.address}"
        run = runs.get(address, "--config.trainer.steps=3")
        assert replay.info()["groups"].current_size == 0
    assert len(run.consumed) == run.settings.trainer.steps
    assert server.poll() is None
    assert not run.workdir.log("replay").exists()


@pytest.mark.nightly
def test_a_server_by_hand_that_does_not_fit_is_refused_before_anything_starts(by_hand, tmp_path):
    server = by_hand(2)
    flag = f"--config.replay.address={server.address}"
    for part in ("--tables '[{", "cannot be reached"):
        process = launch(flag, workdir=tmp_path / "run")
        output = ended(process)
        assert process.returncode == 2
        assert part in output
        assert "Traceback" not in output
        assert not (tmp_path / "run").exists()
        server.stop()


@pytest.mark.nightly
def test_a_table_that_another_process_empties_ends_the_run_with_that_cause(by_hand, started):
    server = by_hand(256)
    # A trainer that is started again would go on with new groups.
    never = "--config.launch.restarts=0"
    process, workdir = started(f"--config.replay.address={server.address}", never)
    with ReplayClient(server.address) as other:
        deadline = time.monotonic() + 120
        while other.info()["groups"].num_sampled < 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        other.reset("groups")
    output = ended(process)
    assert process.returncode == 1
    failure = output[output.index("The run failed:") :]
    assert "Another process emptied it" in failure
    assert any((workdir / "checkpoints").iterdir())
