"""Ports for servers that are started later."""

import socket

import pytest

from rl_sync.runtime import ports

HOST = "127.0.0.1"


def test_ports_differ_and_are_none_that_others_are_given():
    found = ports.free_ports(HOST, 50)
    assert len(set(found)) == 50
    with socket.create_server((HOST, 0)) as other:
        assert max(found) < other.getsockname()[1]
    with socket.create_server((HOST, found[0])):
        pass


def test_an_address_of_this_machine_is_reached_at_its_own():
    assert ports.interface_towards(f"{HOST}:1234") == HOST


def test_a_port_on_which_somebody_listens_is_not_taken(monkeypatch):
    first, second = ports.free_ports(HOST, 2)
    monkeypatch.setattr(ports, "CANDIDATES", [first, second])
    with socket.create_server((HOST, first)):
        assert ports.free_ports(HOST, 1) == [second]
        with pytest.raises(OSError, match=r"only 1 are free, and 2 are needed"):
            ports.free_ports(HOST, 2)
