"""Host names are resolved, but not forever."""

from __future__ import annotations

import socket
import threading

import pytest

from rl_sync.cluster import host_names
from rl_sync.settings.records import ConfigError


def test_this_machine_and_its_addresses_are_known():
    host_names.check_own("launch.host", "localhost")
    host_names.check_own("launch.host", "127.0.0.1")


def test_another_machine_is_refused():
    with pytest.raises(ConfigError, match=r"launch.host=192.0.2.1 must be an address of this mach"):
        host_names.check_own("launch.host", "192.0.2.1")


def test_a_name_that_nobody_knows_is_refused(monkeypatch):
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match=r"launch.host=nowhere cannot be looked up: .*not known"):
        host_names.check_own("launch.host", "nowhere")


def test_a_name_server_that_does_not_answer_is_waited_for_until_the_deadline(monkeypatch):
    answered = threading.Event()

    def silent(*_: object, **__: object) -> None:
        answered.wait(60)
        raise socket.gaierror(-3, "Temporary failure")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    with pytest.raises(ConfigError, match=r"no name server answered within 0\.1 s"):
        host_names.look_up("launch.host", "nowhere", timeout_secs=0.1)
    answered.set()


def test_an_interface_has_the_address_that_others_reach():
    assert host_names.own_address("launch.host", "lo") == "127.0.0.1"
    assert host_names.own_address("launch.host", "::1") == "::1"


def test_auto_is_the_address_towards_the_other_machines():
    assert host_names.own_address("launch.host", "auto", ["127.0.0.9"]) == "127.0.0.1"
    assert host_names.own_address("launch.host", "auto", ["::1"]) == "::1"


def test_auto_needs_a_route(monkeypatch):
    def none(address: str) -> str:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(host_names, "interface_towards", none)
    with pytest.raises(ConfigError, match=r"launch.host=auto finds no address of this machine"):
        host_names.own_address("launch.host", "auto", ["10.0.0.2"])
