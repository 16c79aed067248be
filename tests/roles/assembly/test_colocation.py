"""Roles as threads of one process: their devices, and how they end together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from rl_sync.cluster.ports import free_ports
from rl_sync.cluster.rpc import CallHandlers, RpcServer
from rl_sync.cluster.secret import secret_of
from rl_sync.messages.master_calls import AskStatus, Happened
from rl_sync.messages.run_status import RunStatus
from rl_sync.roles.assembly.colocation import RoleThreads, allot
from rl_sync.settings.records import ConfigError
from tests.settings.test_run_settings import settings_with

TWO = {"sync__mode": "multi_explorer", "explorer__count": 2, "launch__colocate": True}


def _allotted(devices: int, **fields: object) -> dict[str, list[int]]:
    given = allot(settings_with(**TWO, **fields), jax.devices()[:devices])
    return {role: [device.id for device in own] for role, own in given.items()}


def test_each_role_gets_devices_of_its_own_where_there_are_enough():
    mesh = {"trainer__mesh__fsdp": 2}
    assert _allotted(4, **mesh) == {"trainer": [0, 1], "explorer1": [2], "explorer2": [3]}


def test_they_share_the_first_devices_where_there_are_not_or_when_told_to():
    shared = {"trainer": [0, 1], "explorer1": [0], "explorer2": [0]}
    mesh = {"trainer__mesh__fsdp": 2}
    assert _allotted(3, **mesh) == shared
    assert _allotted(4, **mesh, **{"launch__share_devices": True}) == shared


def test_a_mesh_that_the_process_cannot_hold_is_refused():
    with pytest.raises(ConfigError, match=r"trainer\.mesh needs 4 devices, but .* has 2"):
        _allotted(2, **{"trainer__mesh__data": 2, "trainer__mesh__fsdp": 2})


class Master:
    """A master that keeps the reasons for which it was told to stop the run.

    Args:
      phase: what it says that the run is in.
    """

    def __init__(self, phase: str) -> None:
        self.phase, self.reasons, self.stopped = phase, [], threading.Event()

    def status(self, call: AskStatus) -> RunStatus:
        return RunStatus(self.phase, 3, 12, (), 0, 12, 1.0, "")

    def stop(self, call: Happened) -> None:
        self.reasons.append(call.event.reason)
        self.stopped.set()


@pytest.fixture(autouse=True)
def workdir(tmp_path, monkeypatch):
    """The run's work directory, where its secret lies."""
    monkeypatch.chdir(tmp_path)
    directory = Path(settings_with(**TWO).workdir)
    directory.mkdir()
    return directory


@pytest.fixture
def master(workdir):
    """A master of a run that learns, with its address."""
    one = Master("rl")
    desk = CallHandlers(Happened.answered_by(one.stop), AskStatus.answered_by(one.status))
    (port,) = free_ports("127.0.0.1", 1)
    server = RpcServer(desk, port, "127.0.0.1", secret=secret_of(workdir))
    yield one, f"127.0.0.1:{port}"
    server.close()


def fail() -> None:
    raise RuntimeError("no more memory")


def hang() -> None:
    threading.Event().wait()


def seconds_until_it_fails(address: str, work: dict[str, Callable[[], None]]) -> float:
    """Returns how long a crew takes to raise; `launch.stop_secs` would be a minute."""
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="no more memory"):
        RoleThreads(settings_with(**TWO), address).run(work)
    return time.monotonic() - started


def test_when_one_fails_the_run_is_stopped_and_a_trainer_that_learns_saves_first(master):
    one, address = master
    saved = []

    def train() -> None:
        assert one.stopped.wait(20)
        time.sleep(0.5)
        saved.append("snapshot")

    assert seconds_until_it_fails(address, {"explorer1": fail, "trainer": train}) < 20
    assert one.reasons == ["explorer1 failed"]
    assert saved == ["snapshot"]


def test_a_trainer_that_has_not_begun_to_learn_is_not_waited_for(master):
    one, address = master
    one.phase = "start"
    assert seconds_until_it_fails(address, {"explorer1": fail, "trainer": hang}) < 20
    assert one.reasons == ["explorer1 failed"]


def test_explorers_are_not_waited_for(master):
    one, address = master
    assert seconds_until_it_fails(address, {"explorer1": hang, "trainer": fail}) < 20
    assert one.reasons == ["trainer failed"]


def test_a_failure_before_there_is_a_master_ends_the_others_at_once():
    (port,) = free_ports("127.0.0.1", 1)
    work = {"explorer1": fail, "trainer": hang}
    assert seconds_until_it_fails(f"127.0.0.1:{port}", work) < 20


def test_a_trainer_that_does_not_end_holds_the_failure_back_only_until_the_deadline(master):
    _, address = master
    crew = RoleThreads(settings_with(**TWO, **{"launch__stop_secs": 0.2}), address)
    with pytest.raises(RuntimeError, match="no more memory"):
        crew.run({"explorer1": fail, "trainer": hang})


def test_all_run_to_their_end(master):
    one, address = master
    done = []
    RoleThreads(settings_with(**TWO), address).run({n: lambda n=n: done.append(n) for n in "abc"})
    assert sorted(done) == ["a", "b", "c"]
    assert one.reasons == []
