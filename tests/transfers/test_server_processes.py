"""Point-to-point transfer between real processes that hang, die, and come again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rl_sync.cluster.ports import free_ports
from rl_sync.cluster.rpc import RpcClient
from rl_sync.transfers.server_publisher import AskOffer, OpenLine
from rl_sync.weights.digest import digest
from rl_sync.weights.ends_interface import WeightsTransferError
from tests.transfers.server_process import (
    HOST,
    LIKE,
    SECRET,
    make_params,
    publisher_of,
    puller_of,
)

SCRIPT = Path(__file__).with_name("server_process.py")
ROOT = Path(__file__).parents[2]
PARAMS_BYTES = sum(leaf.size * 4 for leaf in LIKE.values())


@pytest.fixture
def start():
    """Starts processes, and ends them after the test."""
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def publisher():
    """Makes a publisher in this process."""
    publisher = publisher_of(LIKE)
    yield publisher
    publisher.close()


def said(process: subprocess.Popen[str]) -> str:
    """Reads the next line of a process."""
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    return next(line[2:].strip() for line in lines if line.startswith("> "))


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def await_stopped(process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.gate
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_explorers_that_stand_still_or_die_cost_nobody_else_anything(publisher, start):
    address = publisher.address
    publisher.publish(0, make_params(0))
    resting = [start("explorer", "explorer1", address, "stop")]
    resting += [start("explorer", "explorer2", address, "ask")]
    await_stopped(resting[0])
    assert said(resting[1]) == "asked"
    # Another one is served meanwhile, over the same calls, and the trainer goes on.
    third = puller_of(LIKE, "explorer3", address)
    for version in range(4):
        publisher.publish(version, make_params(version))
        pulled, params = third.pull(exactly=version, timeout_secs=30)
        assert (pulled, digest(params)) == (version, digest(make_params(version)))
    for process in resting:
        process.send_signal(signal.SIGKILL)
        process.wait()
    # They come again, by the same names, and get what is newest.
    again = [start("explorer", name, address, "pull") for name in ("explorer1", "explorer2")]
    for process in again:
        assert said(process) == f"3 {digest(make_params(3))}"
        assert process.wait(60) == 0


@pytest.mark.gate
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "returns",
    [True, pytest.param(False, marks=pytest.mark.nightly)],
    ids=["that returns", "that is gone"],
)
def test_what_the_dead_never_fetched_goes(returns):
    publisher = publisher_of(LIKE, reader_expiry_secs=60.0 if returns else 0.0)
    client = RpcClient(publisher.address, "trainer", SECRET)
    publisher.publish(0, make_params(0))
    before = resident_bytes()
    for version in range(8):
        publisher.publish(version, make_params(version))
        reader = "explorer1" if returns else f"explorer{version}"
        client.call(OpenLine(reader), 30)
        offer = AskOffer(reader, list(range(len(LIKE))), version, None, 30)
        assert client.call(offer, 60) is not None
    # The newest version, one that was offered, and one that is being made.
    assert resident_bytes() - before < 4 * PARAMS_BYTES
    publisher.close()


@pytest.mark.nightly
def test_a_trainer_that_dies_is_named_within_seconds(start):
    process = start("trainer")
    address = said(process)
    puller = puller_of(LIKE, "explorer1", address)
    assert puller.pull(timeout_secs=30)[0] == 0
    process.kill()
    process.wait()
    since = time.monotonic()
    with pytest.raises(WeightsTransferError, match=f"explorer1 wanted version 1 .*{address}"):
        puller.pull(exactly=1, timeout_secs=60)
    assert time.monotonic() - since < 10


@pytest.mark.nightly
def test_a_trainer_that_stands_still_in_the_middle_is_named(start, monkeypatch):
    process = start("trainer")

    class Stopping(RpcClient):
        """Stops the trainer as soon as it has offered, before anything is fetched."""

        def call(self, call, deadline_secs):
            answer = super().call(call, deadline_secs)
            if isinstance(call, AskOffer):
                process.send_signal(signal.SIGSTOP)
                await_stopped(process)
            return answer

    puller = puller_of(LIKE, "explorer1", said(process), Stopping, stall_secs=1.0)
    with pytest.raises(WeightsTransferError, match=r"arrived from process 0 of the .* for 1 s"):
        puller.pull(timeout_secs=30)


@pytest.mark.nightly
def test_programs_of_several_processes_fetch_from_each_process_what_their_own_devices_need(start):
    ports = free_ports(HOST, 2)
    coordinators = [f"{HOST}:{port}" for port in ports]
    trainers = [start("trainers", str(index), coordinators[0]) for index in (0, 1)]
    addresses = ",".join(said(process) for process in trainers)
    explorers = [start("explorers", str(i), coordinators[1], addresses) for i in (0, 1)]
    large = np.arange(1024 * 512, dtype=np.float32).reshape(1024, 512)
    for index, process in enumerate(explorers):
        half = float(large[:, 256 * index :][:, :256].sum())
        version, *shards, small = map(float, said(process).split())
        assert (version, small) == (5, 7)
        assert shards == pytest.approx([half, half])
