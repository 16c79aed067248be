"""Ports for servers that are started later."""

import contextlib
import dataclasses
import socket
import sys

import pytest

from rl_sync import addresses
from rl_sync.cluster import ports
from rl_sync.cluster.rpc import CallHandlers, RpcClient, RpcServer
from rl_sync.messages.call import Call

HOST = "127.0.0.1"


@dataclasses.dataclass(frozen=True)
class Add(Call[int]):
    """Asks for a sum."""

    a: int
    b: int


def test_ports_differ_and_are_none_that_others_are_given():
    found = ports.free_ports(HOST, 50)
    assert len(set(found)) == 50
    with socket.create_server((HOST, 0)) as other:
        assert max(found) < other.getsockname()[1]
    with socket.create_server((HOST, found[0])):
        pass


def test_an_address_of_this_machine_is_reached_at_its_own():
    assert addresses.interface_towards(f"{HOST}:1234") == HOST


@pytest.mark.skipif(sys.platform != "linux", reason="ports are held on Linux only")
def test_a_held_port_is_there_for_a_server_and_not_for_another_run(monkeypatch):
    with contextlib.closing(ports.HeldPorts(HOST)) as held:
        first, second = taken = held.take(2)
        monkeypatch.setattr(ports, "CANDIDATES", taken)
        with pytest.raises(OSError, match="A run needs 1 free ports"):
            ports.free_ports(HOST, 1)
        with pytest.raises(OSError, match="A run needs 1 free ports"):
            held.take(1)
        server = RpcServer(CallHandlers(Add.answered_by(lambda call: call.a + call.b)), first, HOST)
        with contextlib.closing(RpcClient(f"{HOST}:{first}", "server")) as client:
            assert client.call(Add(1, 2), 10.0) == 3
        server.close(0.0)
        with socket.create_server((HOST, second)):
            pass
    monkeypatch.setattr(ports, "CANDIDATES", [second])
    assert ports.free_ports(HOST, 1) == [second]


def test_a_port_on_which_somebody_listens_is_not_taken(monkeypatch):
    first, second = ports.free_ports(HOST, 2)
    monkeypatch.setattr(ports, "CANDIDATES", [first, second])
    with socket.create_server((HOST, first)):
        assert ports.free_ports(HOST, 1) == [second]
        with pytest.raises(OSError, match=r"needs 2 free ports .* there are 1"):
            ports.free_ports(HOST, 2)


def test_too_few_free_ports_are_told_with_the_way_out(monkeypatch):
    monkeypatch.setattr(ports, "CANDIDATES", range(20_000, 20_001))
    with contextlib.closing(ports.HeldPorts(HOST)) as held, pytest.raises(OSError) as error:
        held.take(2)
    assert str(error.value).startswith("A run needs 2 free ports of 20000 to 20000 at 127.0.0.1")
    assert "end other servers, give more ports (launch.ports), or set launch.host" in str(
        error.value
    )
