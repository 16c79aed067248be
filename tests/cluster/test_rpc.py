"""Remote calls: their results, and the errors of callers without an answer."""

import contextlib
import dataclasses
import subprocess
import sys
import threading
import time
from typing import Any

import grpc
import msgpack
import pytest

from rl_sync.cluster.ports import free_ports
from rl_sync.cluster.rpc import CallHandlers, PeerLostError, RemoteError, RpcClient, RpcServer
from rl_sync.isolation.codec import decode, encode
from rl_sync.messages.call import Call

HOST = "127.0.0.1"


@dataclasses.dataclass(frozen=True)
class Echo(Call[Any]):
    """Asks for what it says."""

    said: Any = "here"


@dataclasses.dataclass(frozen=True)
class Other(Call[None]):
    """Asks for nothing."""


@pytest.fixture
def port() -> int:
    return free_ports(HOST, 1)[0]


@pytest.fixture
def client(port):
    with contextlib.closing(RpcClient(f"{HOST}:{port}", "master")) as client:
        yield client


@pytest.fixture
def serve(port):
    """Starts a server that answers `Echo`."""
    with contextlib.ExitStack() as stack:

        def start(answer) -> None:
            server = RpcServer(CallHandlers(Echo.answered_by(answer)), port, HOST)
            stack.callback(server.close, 0.0)

        yield start


def refuse(call) -> None:
    raise KeyError("nothing of that name")


def test_what_is_said_arrives_and_so_does_the_answer(serve, client):
    serve(lambda call: [call, call.said])
    sent = {"none": None, "list": [1, 2.5, "three"], "tuple": (b"\x00", {"a": {"b": True}})}
    assert client.call(Echo(sent), 10.0) == [Echo(sent), sent]


def test_what_answering_raises_is_named(serve, client):
    serve(refuse)
    with pytest.raises(RemoteError, match="KeyError: 'nothing of that name'"):
        client.call(Echo(), 10.0)


def test_a_call_that_nobody_answers_is_named(serve, client):
    serve(refuse)
    with pytest.raises(RemoteError, match="ValueError: This process does not answer Other"):
        client.call(Other(), 10.0)


def test_a_call_that_cannot_be_read_is_answered_with_the_reason(port):
    server = RpcServer(CallHandlers(), port, HOST, secret="ours")
    with grpc.insecure_channel(f"{HOST}:{port}") as channel:
        call = channel.unary_unary("/rl_sync.Role/Call")
        shout = msgpack.packb(msgpack.ExtType(3, encode(["Shout", {}])))
        reply = call(shout, timeout=10, metadata=[("rl-sync-secret", "ours")])
    why = "ValueError: A Shout is not a record that processes send each other."
    assert decode(reply) == (False, why)
    server.close(0.0)


def test_a_server_that_takes_too_long_is_lost_and_the_error_says_who_and_what(serve, client, port):
    done = threading.Event()
    serve(lambda call: done.wait(10.0))
    with pytest.raises(PeerLostError, match=rf"the master at {HOST}:{port} to Echo within 0.2 s"):
        client.call(Echo(), 0.2)
    done.set()


def test_nobody_is_waited_for_where_nobody_listens(client):
    start = time.monotonic()
    with pytest.raises(PeerLostError, match=r"Connection refused|failed to connect"):
        client.call(Echo(), 60.0)
    assert time.monotonic() - start < 20.0


@pytest.mark.gate
def test_who_called_too_early_often_is_answered_soon_after_the_server_is_up(serve, client):
    """The launcher calls like this, since it shows the run's status from the first moment."""
    deadline = time.monotonic() + 6.0
    while time.monotonic() < deadline:
        with contextlib.suppress(PeerLostError):
            client.call(Echo(), 10.0)
        time.sleep(0.05)
    serve(lambda call: "up")
    up, answer = time.monotonic(), None
    while answer is None:
        with contextlib.suppress(PeerLostError):
            answer = client.call(Echo(), 10.0)
        assert time.monotonic() - up < 1.5
        time.sleep(0.02)


def test_a_proxy_for_downloads_is_not_asked(serve, port, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://{HOST}:1")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("no_grpc_proxy", "")
    serve(lambda call: call.said)
    with contextlib.closing(RpcClient(f"{HOST}:{port}", "master")) as client:
        assert client.call(Echo(), 10.0) == "here"


@pytest.mark.parametrize("secret", ["", "another run's", "schlüssel"])
def test_who_does_not_know_the_secret_is_refused_and_that_is_logged(port, secret, caplog):
    called = []
    server = RpcServer(called.append, port, HOST, secret="ours")
    metadata = [("rl-sync-secret", secret)] if secret.isascii() else []
    with grpc.insecure_channel(f"{HOST}:{port}") as channel:
        call = channel.unary_unary("/rl_sync.Role/Call")
        with pytest.raises(grpc.RpcError) as refusal:
            call(encode(Echo()), timeout=10, metadata=metadata)
    assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "lacks the secret of this run" in caplog.text
    assert "ours" not in caplog.text
    with contextlib.closing(RpcClient(f"{HOST}:{port}", "master", "ours")) as client:
        client.call(Echo("stop"), 10.0)
    assert called == [Echo("stop")]
    server.close(0.0)


def test_who_calls_another_runs_master_is_told(port):
    server = RpcServer(CallHandlers(), port, HOST, secret="theirs")
    told = rf"Echo is refused by the master at {HOST}:{port}.* Another run has that address"
    with (
        contextlib.closing(RpcClient(f"{HOST}:{port}", "master", "ours")) as client,
        pytest.raises(RemoteError, match=told),
    ):
        client.call(Echo(), 10.0)
    server.close(0.0)


@pytest.mark.gate
def test_a_server_without_a_secret_answers_this_process_alone(serve, port):
    serve(lambda call: "here")
    program = f"""
from rl_sync.cluster.rpc import RpcClient
from tests.cluster.test_rpc import Echo
RpcClient("{HOST}:{port}", "master").call(Echo(), 10.0)
"""
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "RefusedError: Echo is refused" in other.stderr


def test_a_port_that_is_taken_is_named(serve, port):
    serve(refuse)
    with pytest.raises(ValueError, match=f"Port {port} on {HOST} is taken"):
        RpcServer(CallHandlers(), port, HOST)
