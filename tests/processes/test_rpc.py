"""Remote calls: what comes back, and what a caller is told that gets no answer."""

import contextlib
import subprocess
import sys
import threading
import time

import grpc
import msgpack
import pytest

from rl_sync.processes.ports import free_ports
from rl_sync.processes.rpc import PeerLostError, RemoteError, RpcClient, RpcServer

HOST = "127.0.0.1"


@pytest.fixture
def port() -> int:
    return free_ports(HOST, 1)[0]


@pytest.fixture
def client(port):
    with contextlib.closing(RpcClient(f"{HOST}:{port}", "master")) as client:
        yield client


@pytest.fixture
def serve(port):
    """Starts a server of some methods."""
    with contextlib.ExitStack() as stack:

        def start(**methods) -> None:
            server = RpcServer(methods, port, HOST)
            stack.callback(server.close, 0.0)

        yield start


def refuse() -> None:
    raise KeyError("nothing of that name")


def test_arguments_and_results_are_plain_values(serve, client):
    serve(echo=lambda **arguments: arguments)
    sent = {"none": None, "list": [1, 2.5, "three"], "bytes": b"\x00", "dict": {"a": {"b": True}}}
    assert client.call("echo", 10.0, **sent) == sent


def test_what_the_method_raises_is_named(serve, client):
    serve(refuse=refuse)
    with pytest.raises(RemoteError, match="KeyError: 'nothing of that name'"):
        client.call("refuse", 10.0)


def test_a_server_that_takes_too_long_is_lost_and_the_error_says_who_and_what(serve, client, port):
    done = threading.Event()
    serve(sleep=lambda: done.wait(10.0))
    with pytest.raises(
        PeerLostError, match=rf"the master at {HOST}:{port} to 'sleep' within 0.2 s"
    ):
        client.call("sleep", 0.2)
    done.set()


def test_nobody_is_waited_for_where_nobody_listens(client):
    start = time.monotonic()
    with pytest.raises(PeerLostError, match=r"Connection refused|failed to connect"):
        client.call("echo", 60.0)
    assert time.monotonic() - start < 20.0


def test_who_called_too_early_often_is_answered_soon_after_the_server_is_up(serve, client):
    """As the launcher, which shows the run's status from the first moment."""
    deadline = time.monotonic() + 6.0
    while time.monotonic() < deadline:
        with contextlib.suppress(PeerLostError):
            client.call("status", 10.0)
        time.sleep(0.05)
    serve(status=lambda: "up")
    up, answer = time.monotonic(), None
    while answer is None:
        with contextlib.suppress(PeerLostError):
            answer = client.call("status", 10.0)
        assert time.monotonic() - up < 1.5
        time.sleep(0.02)


def test_a_proxy_for_downloads_is_not_asked(serve, port, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://{HOST}:1")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("no_grpc_proxy", "")
    serve(echo=lambda: "here")
    with contextlib.closing(RpcClient(f"{HOST}:{port}", "master")) as client:
        assert client.call("echo", 10.0) == "here"


@pytest.mark.parametrize("secret", ["", "another run's", "schlüssel"])
def test_who_does_not_know_the_secret_is_refused_and_that_is_logged(port, secret, caplog):
    called = []
    server = RpcServer({"stop": lambda: called.append("stop")}, port, HOST, secret="ours")
    metadata = [("rl-sync-secret", secret)] if secret.isascii() else []
    with grpc.insecure_channel(f"{HOST}:{port}") as channel:
        call = channel.unary_unary("/rl_sync.Role/Call")
        with pytest.raises(grpc.RpcError) as refusal:
            call(msgpack.packb(("stop", {})), timeout=10, metadata=metadata)
    assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "lacks the secret of this run" in caplog.text
    assert "ours" not in caplog.text
    with contextlib.closing(RpcClient(f"{HOST}:{port}", "master", "ours")) as client:
        client.call("stop", 10.0)
    assert called == ["stop"]
    server.close(0.0)


def test_who_calls_another_runs_master_is_told(port):
    server = RpcServer({}, port, HOST, secret="theirs")
    told = rf"'lease' is refused by the master at {HOST}:{port}.* Another run has that address"
    with (
        contextlib.closing(RpcClient(f"{HOST}:{port}", "master", "ours")) as client,
        pytest.raises(RemoteError, match=told),
    ):
        client.call("lease", 10.0)
    server.close(0.0)


def test_a_server_without_a_secret_answers_this_process_alone(serve, port):
    serve(echo=lambda: "here")
    program = f"""
from rl_sync.processes.rpc import RpcClient
RpcClient("{HOST}:{port}", "master").call("echo", 10.0)
"""
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "RemoteError: 'echo' is refused" in other.stderr


def test_a_port_that_is_taken_is_named(serve, port):
    serve()
    with pytest.raises(ValueError, match=f"Port {port} on {HOST} is taken"):
        RpcServer({}, port, HOST)
