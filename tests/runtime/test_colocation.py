"""Roles as threads of one process: their devices, and how they end together."""

from __future__ import annotations

import threading
from pathlib import Path

import jax
import pytest

from rl_sync.runtime.colocation import Crew, allot
from rl_sync.runtime.ports import free_ports
from rl_sync.runtime.records import ConfigError
from rl_sync.runtime.rpc import RpcServer
from rl_sync.runtime.secret import secret_of
from tests.runtime.test_settings import settings_with

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


def test_sharing_needs_one_process():
    with pytest.raises(ConfigError, match=r"use it with launch\.colocate=true"):
        settings_with(**{"launch__share_devices": True})


@pytest.fixture
def stops(tmp_path, monkeypatch):
    """A master that keeps the reasons for which it was told to stop the run."""
    reasons, stopped = [], threading.Event()

    def stop(reason: str) -> None:
        reasons.append(reason)
        stopped.set()

    (port,) = free_ports("127.0.0.1", 1)
    monkeypatch.chdir(tmp_path)
    directory = Path(settings_with(**TWO).workdir)
    directory.mkdir()
    server = RpcServer({"stop": stop}, port, "127.0.0.1", secret=secret_of(directory))
    yield f"127.0.0.1:{port}", reasons, stopped
    server.close()


def test_when_one_fails_the_run_is_stopped_and_the_others_save_first(stops):
    address, reasons, stopped = stops
    saved = []

    def fail() -> None:
        raise RuntimeError("no more memory")

    def train() -> None:
        assert stopped.wait(20)
        saved.append("snapshot")

    crew = Crew(settings_with(**TWO), address)
    with pytest.raises(RuntimeError, match="no more memory"):
        crew.run({"explorer1": fail, "trainer": train})
    assert reasons == ["explorer1 failed"]
    assert saved == ["snapshot"]


def test_one_that_does_not_end_holds_the_failure_back_only_until_the_deadline(stops):
    address, _, _ = stops

    def fail() -> None:
        raise RuntimeError("no more memory")

    crew = Crew(settings_with(**TWO, **{"launch__stop_secs": 0.2}), address)
    with pytest.raises(RuntimeError, match="no more memory"):
        crew.run({"explorer1": fail, "trainer": threading.Event().wait})


def test_all_run_to_their_end(stops):
    address, reasons, _ = stops
    done = []
    Crew(settings_with(**TWO), address).run({n: lambda n=n: done.append(n) for n in "abc"})
    assert sorted(done) == ["a", "b", "c"]
    assert reasons == []
