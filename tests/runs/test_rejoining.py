"""An explorer dies and rejoins over the server transfer: the run loses only its leases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from rl_sync.checkpoints.ledger import read_consumed, read_ledger
from rl_sync.cluster.ports import free_ports
from rl_sync.cluster.rpc import RpcClient
from rl_sync.cluster.secret import secret_of
from rl_sync.messages.events import StopRequested
from rl_sync.messages.master_calls import CloseLedger, Happened
from rl_sync.replay.server_process import start_server
from rl_sync.roles.assembly.replay_tables import replay_tables
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings
from rl_sync.workdir import Workdir
from tests.runs import quick
from tests.runs.conftest import ROOT, TIMEOUT_SECS, quickly, session_directory

HOST = "127.0.0.1"


@pytest.fixture(params=["whole weights", "what changed, over relays"])
def settings(request, tmp_path) -> RunSettings:
    config = quick.get_config()
    config.workdir = str(tmp_path / "run")
    config.sync.mode, config.sync.transfer = "multi_explorer", "server"
    if request.param != "whole weights":
        config.sync.delta, config.sync.fanout = "on", 1
    config.trainer.steps = 100_000
    config.master.lease_secs = 2.0
    config.replay.backend = "embedded"
    settings = read_settings(config.to_dict())
    (tmp_path / "run").mkdir()
    Workdir(settings.workdir).config.write_text(json.dumps(settings.resolved()))
    return settings


@pytest.fixture
def start(settings, tmp_path):
    """Starts the processes of a run, as a cluster's hosts do: by hand."""
    master, replay = free_ports(HOST, 2)
    processes = {}
    server = start_server(
        "embedded", replay_tables(settings), replay, log_path=tmp_path / "replay.log"
    )

    def start(role: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rl_sync.roles.process", f"--role={role}"]
        command += [f"--workdir={settings.workdir}", f"--master={HOST}:{master}"]
        with (tmp_path / f"{role}.log").open("ab") as log:
            processes[role] = subprocess.Popen(
                [*command, f"--replay={HOST}:{replay}"],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, **quickly(session_directory(tmp_path))},
            )
        return processes[role]

    start.master = RpcClient(f"{HOST}:{master}", "master", secret_of(settings.workdir))
    yield start
    for process in processes.values():
        process.kill()
        process.wait()
    server.stop()


def wait_for(condition, *processes):
    deadline = time.monotonic() + TIMEOUT_SECS
    while not condition():
        assert [process.poll() for process in processes] == [None] * len(processes)
        assert time.monotonic() < deadline, "the run does not get there"
        time.sleep(0.1)


@pytest.mark.nightly
def test_an_explorer_that_is_killed_comes_again_while_the_trainer_goes_on(settings, start):
    def consumed() -> list:
        there = Workdir(settings.workdir).consumed.exists()
        return read_consumed(settings.workdir) if there else []

    def steps() -> int:
        return len(consumed())

    def trained(explorer: int, after: int) -> bool:
        groups = (g for step in consumed()[after:] for g in step["groups"])
        return any(group["explorer"] == explorer for group in groups)

    names = ("master", "trainer", "explorer1", "explorer2")
    master, trainer, first, second = (start(role) for role in names)
    wait_for(lambda: trained(2, 0) and steps() >= 3, master, trainer, first, second)
    second.kill()
    second.wait()
    at_death = steps()
    # Until its last lease has expired, and longer.
    wait_for(lambda: steps() > at_death + 20, master, trainer, first)
    again = start("explorer2")
    at_return = steps()
    wait_for(lambda: trained(2, at_return), master, trainer, first, again)
    start.master.call(Happened(StopRequested("the test has seen enough")), 30.0)
    for process in (trainer, first, again):
        assert process.wait(TIMEOUT_SECS) == 0
    start.master.call(CloseLedger(), 30.0)
    balance = read_ledger(settings.workdir)[-1]
    lost = sum(balance["dropped"].values())
    assert balance["leased"] == balance["trained"] + balance["buffered"] + lost
