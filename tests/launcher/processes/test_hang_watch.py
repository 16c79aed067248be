"""The launcher names and ends processes that hang."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

import pytest

from rl_sync.cluster.ports import free_ports
from rl_sync.cluster.rpc import CallHandlers, RpcClient, RpcServer
from rl_sync.launcher.processes.hang_watch import HangWatch
from rl_sync.launcher.processes.supervisor import RoleProcess, Supervisor
from rl_sync.messages.master_calls import AskSilences
from rl_sync.messages.run_status import Silence
from rl_sync.replay.server_process import start_server
from rl_sync.replay.tables import queue
from tests.settings.test_run_settings import settings_with

HOST = "127.0.0.1"
WAIT = {"launch__wait_secs": 20.0}
SILENT = Silence("trainer", 123, 25.0, "at train (step 2)")


class Master:
    """Reports silent processes, as the master does."""

    def __init__(self) -> None:
        self.silent: list[Silence] = []
        self.asked: list[float] = []

    def silences(self, call: AskSilences) -> list[Silence]:
        self.asked.append(call.at_least_secs)
        return [silence for silence in self.silent if silence.secs >= call.at_least_secs]


@pytest.fixture
def master():
    return Master()


@pytest.fixture
def client(master):
    (port,) = free_ports(HOST, 1)
    server = RpcServer(CallHandlers(AskSilences.answered_by(master.silences)), port, HOST)
    with contextlib.closing(RpcClient(f"{HOST}:{port}", "master")) as client:
        client.server = server
        yield client
    server.close(0.0)


@pytest.fixture
def supervisor(tmp_path):
    supervisor = Supervisor()
    for name in ("master", "trainer", "trainer+explorers"):
        command = [sys.executable, "-c", "import time; time.sleep(1000)"]
        supervisor.add(RoleProcess.start(name, command, tmp_path / f"{name}.log", {}))
    yield supervisor
    supervisor.end_all(0.1)


def test_who_has_been_silent_for_the_longest_wait_is_ended_and_named(master, client, supervisor):
    hang_watch = HangWatch(settings_with(**WAIT), supervisor)
    assert hang_watch.look(client) == []
    assert master.asked == [20.0]
    assert hang_watch.look(client) == [], "asked too often"
    assert master.asked == [20.0]
    master.silent = [SILENT]
    hang_watch._next_secs = 0.0
    (death,) = hang_watch.look(client)
    assert death.name == "trainer"
    assert death.report([]).startswith("trainer (process 123) hangs, or was stopped: it has sent")
    assert supervisor.living(["trainer", "master"]) == ["master"]
    assert supervisor.deaths() == [], "it is not dead once more"


def test_of_roles_in_one_process_that_process_is_ended_once(master, client, supervisor):
    settings = settings_with(**WAIT, launch__colocate=True)
    master.silent = [SILENT, Silence("explorer1", 123, 24.0, "at rollout")]
    (death,) = HangWatch(settings, supervisor).look(client)
    assert death.name == "trainer+explorers"
    assert "trainer (process 123) hangs" in str(death)


def test_a_shorter_silence_is_suspect_where_something_else_has_ended(master, client, supervisor):
    master.silent = [SILENT._replace(secs=12.0)]
    hang_watch = HangWatch(settings_with(**WAIT), supervisor)
    assert hang_watch.look(client) == []
    (death,) = hang_watch.suspects(client, None)
    assert death.name == "trainer"


def test_a_master_that_answered_and_does_so_no_more_is_ended(client, supervisor):
    hang_watch = HangWatch(settings_with(launch__wait_secs=0.5), supervisor)
    client.server.close(0.0)
    time.sleep(0.6)
    assert hang_watch.look(client) == [], "it was not up yet"
    hang_watch._answered_secs, hang_watch._next_secs = time.monotonic(), 0.0
    assert hang_watch.look(client) == []
    time.sleep(0.6)
    (death,) = hang_watch.look(client)
    assert str(death) == "master hangs, or was stopped: it has not answered for 1 s"
    assert supervisor.living(["master"]) == []


@pytest.mark.gate
def test_a_replay_server_that_stands_still_is_suspect_and_one_that_starts_is_not(
    client, supervisor, tmp_path, monkeypatch
):
    from rl_sync.launcher.processes.run_processes import ReplayProcess

    monkeypatch.setattr("rl_sync.launcher.processes.hang_watch._ANSWER_SECS", 0.5)
    server = start_server("embedded", [queue("groups", 3)], 0, log_path=tmp_path / "replay.log")
    supervisor.add(ReplayProcess("replay", tmp_path / "replay.log", server))
    hang_watch = HangWatch(settings_with(**WAIT), supervisor)
    assert hang_watch.suspects(client, server) == []
    server.wait_ready(60)
    assert hang_watch.suspects(client, server) == []
    os.kill(server.popen.pid, signal.SIGSTOP)
    (death,) = hang_watch.suspects(client, server)
    assert death.name == "replay"
    assert f"replay server (process {server.popen.pid}) hangs" in str(death)
    assert supervisor.living(["replay"]) == []
