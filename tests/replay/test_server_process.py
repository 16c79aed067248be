"""Start and stop of replay servers, and their messages if they cannot start."""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from rl_sync.replay import reverb_server
from rl_sync.replay.client import ReplayClient
from rl_sync.replay.replay_interface import ReplayUnavailableError
from rl_sync.replay.server_process import ReplayServerError, start_server
from rl_sync.replay.tables import TableSpec, queue

TABLES = [queue("queue", 3)]
EACH = pytest.mark.parametrize(
    "backend", ["embedded", pytest.param("reverb", marks=pytest.mark.gate)]
)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid, timeout_secs=15.0):
    deadline = time.monotonic() + timeout_secs
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.05)


STARTER = """
import sys, time
from rl_sync.replay.server_process import start_server
from rl_sync.replay.tables import TableSpec, queue
server = start_server(sys.argv[1], [queue("queue", 3)], 0, log_path=sys.argv[2])
if sys.argv[3] == "ready":
    server.wait_ready(60)
print(server.popen.pid, server.address, flush=True)
time.sleep(100)
"""


@pytest.mark.gate
@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="reads /proc")
@pytest.mark.parametrize(
    ("backend", "when"), [("embedded", "ready"), ("embedded", "starting"), ("reverb", "starting")]
)
def test_a_server_ends_when_its_parent_is_killed(backend, when, tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTER, backend, str(tmp_path / "log"), when],
        stdout=subprocess.PIPE,
        text=True,
    )
    pid, address = parent.stdout.readline().split()
    assert is_alive(pid)
    if when == "starting":
        time.sleep(1.0)
    parent.kill()
    parent.wait(10)
    wait_until_gone(pid)
    if when == "ready":
        with ReplayClient(address) as client, pytest.raises(ReplayUnavailableError):
            client.info()


def test_a_server_ends_on_sigterm_with_a_clean_status(tmp_path):
    reverb_server = start_server(
        "embedded", TABLES, 0, log_path=tmp_path / "log", start_timeout_secs=60
    )
    assert reverb_server.poll() is None
    os.kill(reverb_server.popen.pid, signal.SIGTERM)
    assert reverb_server.popen.wait(10) == 0
    reverb_server.stop()


def test_a_server_that_stops_tells_those_who_wait(tmp_path):
    with start_server(
        "embedded", TABLES, 0, log_path=tmp_path / "log", start_timeout_secs=60
    ) as reverb_server:
        client = ReplayClient(reverb_server.address)
        for i in range(3):
            client.insert("queue", {"i": np.int32(i)}, timeout_secs=5)
        with pytest.raises(TimeoutError):
            client.insert("queue", {"i": np.int32(3)}, timeout_secs=0.1)
        reverb_server.stop()
        with pytest.raises(ReplayUnavailableError):
            client.flush(timeout_secs=5)
        client.close()


@EACH
def test_a_taken_port_is_named(backend, servers, tmp_path):
    port = servers[backend].port
    with pytest.raises(ReplayServerError, match=f"port {port} of 127.0.0.1: another"):
        start_server(backend, TABLES, port, log_path=tmp_path / "log", start_timeout_secs=60)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
@EACH
def test_a_server_answers_at_its_own_address_alone(backend, servers):
    """Reverb listens everywhere; packets to other addresses are dropped."""
    port = servers[backend].port
    socket.create_connection(("127.0.0.1", port), timeout=10).close()
    with pytest.raises((ConnectionRefusedError, TimeoutError)):
        socket.create_connection(("127.0.0.2", port), timeout=1)


@pytest.mark.skipif(sys.platform != "linux", reason="filters are Linux's")
def test_what_is_not_sent_to_the_wanted_address_is_dropped():
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listening:
        port = listening.getsockname()[1]

        def answers(address: str) -> bool:
            try:
                socket.create_connection((address, port), timeout=1).close()
            except OSError:
                return False
            return True

        assert [answers(a) for a in ("127.0.0.1", "127.0.0.2", "::1")] == [True, True, True]
        reverb_server.answer_at("localhost", port)
        assert [answers(a) for a in ("127.0.0.1", "127.0.0.2", "::1")] == [True, False, True]
        reverb_server.answer_at("::1", port)
        assert [answers(a) for a in ("127.0.0.1", "127.0.0.2", "::1")] == [False, False, True]


def test_a_missing_uv_names_both_ways_out(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReplayServerError, match=r"pip install uv.*replay\.backend=embedded"):
        start_server("reverb", TABLES, 0, log_path=tmp_path / "log")


def test_an_environment_that_cannot_be_made_names_the_way_out_and_the_log(monkeypatch, tmp_path):
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    with pytest.raises(ReplayServerError, match=r"replay\.backend=embedded(.|\n)*/log:\n +\S"):
        start_server("reverb", TABLES, 0, log_path=tmp_path / "log", start_timeout_secs=60)


def test_a_slow_start_is_given_up_at_the_deadline(tmp_path):
    start = time.monotonic()
    with pytest.raises(ReplayServerError, match="did not serve within"):
        start_server("reverb", TABLES, 0, log_path=tmp_path / "log", start_timeout_secs=0.1)
    assert time.monotonic() - start < 10


def test_an_unknown_backend_is_refused(tmp_path):
    with pytest.raises(ValueError, match="one of reverb, embedded"):
        start_server("redis", TABLES, 0, log_path=tmp_path / "log")


@pytest.mark.gate
@pytest.mark.parametrize("module", ["reverb_server", "embedded_server"])
@pytest.mark.parametrize(
    ("tables", "part"),
    [
        ('[{"name": "q"}]', b"max_size"),
        ('[{"name": "q", "max_size": 1, "size": 2}]', b"size"),
        ('{"name": "q", "max_size": 1}', b"list"),
        ("[", b"Expecting"),
    ],
)
def test_wrong_tables_end_a_server_with_the_reason(module, tables, part):
    command = [sys.executable, "-m", f"rl_sync.replay.{module}", "--port", "0", "--tables", tables]
    life_line, held = os.pipe()
    ended = subprocess.run(command, stdin=life_line, capture_output=True, timeout=60)
    os.close(life_line)
    os.close(held)
    assert ended.returncode == 97
    assert part in ended.stderr
    assert b"Traceback" not in ended.stderr


def test_fields_left_out_have_the_defaults_of_a_table_specification():
    (fields,) = reverb_server.read_tables('[{"name": "q", "max_size": 4}]')
    assert fields == dataclasses.asdict(TableSpec("q", max_size=4))


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="reads /proc")
def test_the_search_for_a_listening_socket_finds_it_and_keeps_no_other_file_open():
    reading, writing = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        found = reverb_server.listening_sockets(port)
        assert {one.getsockname()[1] for one in found} == {port}
        for one in found:
            one.close()
    os.close(writing)
    os.set_blocking(reading, False)
    assert os.read(reading, 1) == b"", "a copy of the other end is open"
    os.close(reading)
