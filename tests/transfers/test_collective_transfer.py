"""Collective transfer between real processes of one cluster."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import pytest

from rl_sync.cluster.ports import free_ports
from rl_sync.cluster.rpc import RpcServer
from rl_sync.weights.cluster import init_cluster, leave_cluster
from rl_sync.weights.ends_interface import WeightsTransferError
from tests.transfers.cluster_process import BUCKET_BYTES, SECRET
from tests.transfers.sessions import WeightMaster

SCRIPT = Path(__file__).with_name("cluster_process.py")
ROOT = Path(__file__).parents[2]


def run_cluster(meshes: list[dict], directory: Path) -> list[dict]:
    """Runs `cluster_process.py`, one process for each mesh; returns the report of each."""

    master = RpcServer(WeightMaster().desk, 0, secret=SECRET)
    (cluster_port,) = free_ports("127.0.0.1", 1)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
    processes = []
    for process in range(len(meshes)):
        arguments = [
            process,
            cluster_port,
            f"127.0.0.1:{master.port}",
            directory,
            json.dumps(meshes),
        ]
        processes.append(
            subprocess.Popen(
                [sys.executable, str(SCRIPT), *map(str, arguments)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        outputs = [process.communicate(timeout=150)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
        master.close()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-3000:]
    return [
        json.loads((directory / f"{process}.json").read_text()) for process in range(len(meshes))
    ]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Returns the reports of a trainer and one explorer, of other shardings and device counts."""
    return run_cluster(
        [{"fsdp": 3, "data": 2}, {"tensor": 2, "data": 2}], tmp_path_factory.mktemp("pair")
    )


@pytest.mark.gate
def test_an_explorer_gets_each_exact_version_to_the_bit_although_the_trainer_donates_it(pair):
    trainer, explorer = pair
    assert len(set(trainer["exact"].values())) == 3
    assert explorer["exact"] == trainer["exact"]
    assert explorer["newest"][-1] in (2, 3, 4, 5)


@pytest.mark.nightly
def test_neither_side_holds_more_than_a_bucket_besides_the_weights(pair):
    for side in pair:
        assert 0 < side["extra_bytes"] <= side["devices"] * BUCKET_BYTES


@pytest.mark.nightly
def test_the_trainer_publishes_for_latest_pulls_without_meeting_anyone(pair):
    trainer, explorer = pair
    assert trainer["met"] == []
    assert trainer["served"] == [1]
    assert explorer["latest"] == {"5": trainer["latest"]["5"]}


@pytest.mark.gate
def test_both_sides_say_what_they_waited_for_when_they_do_not_meet(pair):
    trainer, explorer = pair
    assert "for explorer 1 to come for version 6 (0 of 1 came)" in trainer["absent"]
    assert "explorer 1 asks for version 99" in trainer["absent"]
    assert explorer["absent"].startswith("Explorer 1 waited 3.0 s for version 99 of the weights")
    assert "the newest is 6" in explorer["absent"]


@pytest.mark.gate
def test_the_trainer_of_a_cluster_takes_and_loads_a_snapshot_alone(pair):
    assert pair[0]["snapshot"]


@pytest.mark.nightly
def test_three_explorers_get_each_version_to_the_bit(tmp_path):
    trainer, *explorers = run_cluster([{"fsdp": 2}, {"tensor": 2}, {}, {"data": 2}], tmp_path)
    assert [explorer["exact"] for explorer in explorers] == [trainer["exact"]] * 3
    assert [explorer["latest"] for explorer in explorers] == [{"5": trainer["latest"]["5"]}] * 3


@pytest.mark.gate
def test_a_cluster_that_nobody_else_joins_says_so_and_ends():
    (port,) = free_ports("127.0.0.1", 1)
    program = f"""
from rl_sync.weights.cluster import init_cluster
init_cluster("127.0.0.1:{port}", 2, 0, timeout_secs=1)
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert "Process 0 waited 1 s for the 2 processes of the cluster" in result.stderr


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
def test_the_coordinator_listens_at_its_own_address_alone():
    (port,) = free_ports("127.0.0.1", 1)
    program = f"""
from rl_sync.weights.cluster import init_cluster
init_cluster("127.0.0.1:{port}", 2, 0, timeout_secs=60)
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=10).close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=10)
    finally:
        process.kill()
        process.wait()


def test_a_port_that_is_taken_is_named(monkeypatch):
    monkeypatch.setattr(
        "rl_sync.weights.cluster.xla_bridge.backends_are_initialized", lambda: False
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(WeightsTransferError, match=f"cannot listen on port {port} of 127"):
            init_cluster(f"127.0.0.1:{port}", 2, 0)


def test_a_cluster_is_refused_after_jax_was_used():
    jnp.zeros(1).block_until_ready()
    with pytest.raises(WeightsTransferError, match="too late"):
        init_cluster("127.0.0.1:1", 2, 0)


def test_a_process_id_outside_the_cluster_is_refused():
    with pytest.raises(ValueError, match=r"process_id=2 .* they have 0 to 1"):
        init_cluster("127.0.0.1:1", 2, 2)


def test_leaving_without_a_cluster_does_nothing():
    leave_cluster(0.1)
