"""One Reverb server, one embedded server, and one official client for the tests of a session."""

import dataclasses
import json
import pathlib
import subprocess
import threading

import pytest
import uv

from rl_sync.replay.client import ReplayClient
from rl_sync.replay.server_process import start_server
from rl_sync.replay.tables import TableSpec, queue

TABLES = [
    queue("queue", 3),
    queue("long_queue", 10_000),
    TableSpec("stack", 1000, sampler="lifo"),
    TableSpec("twice", 1000, max_times_sampled=2),
    TableSpec("uniform", 1000, sampler="uniform"),
    TableSpec("prioritized", 1000, sampler="prioritized", priority_exponent=2.0),
    TableSpec("best", 1000, sampler="max_heap"),
    TableSpec("small", 3, sampler="uniform"),
    TableSpec("patient", 1000, sampler="uniform", min_size_to_sample=3),
    queue("again", 2, sampler="uniform", times=3),
    TableSpec(
        "ratio",
        1000,
        sampler="uniform",
        min_size_to_sample=2,
        samples_per_insert=2.0,
        min_diff=0.0,
        max_diff=8.0,
    ),
]
START_TIMEOUT_SECS = 240.0


@dataclasses.dataclass(frozen=True)
class Backend:
    """A replay buffer under test; `connect` makes another client of the same buffer."""

    name: str
    address: str
    replay: ReplayClient

    def connect(self):
        return ReplayClient(self.address)


class Official:
    """The official client, in a process of the server's environment."""

    def __init__(self, log):
        script = pathlib.Path(__file__).with_name("official.py")
        self._popen = subprocess.Popen(
            [uv.find_uv_bin(), "run", "--quiet", "--script", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def ask(self, address, do, **arguments):
        timer = threading.Timer(60.0, self._popen.kill)
        timer.start()
        try:
            print(json.dumps({"address": address, "do": do, **arguments}), file=self._popen.stdin)
            self._popen.stdin.flush()
            answer = self._popen.stdout.readline()
        finally:
            timer.cancel()
        assert answer, f"the official client ended, or hung, when asked to {do} {arguments}"
        return json.loads(answer)

    def close(self):
        # Asked in words, since closing its input did not always end it within ten seconds.
        print(json.dumps({"do": "end"}), file=self._popen.stdin, flush=True)
        try:
            self._popen.wait(30)
        except subprocess.TimeoutExpired:
            self._popen.kill()


class Made(dict):
    """What a function makes of a name, when it is first asked for."""

    def __init__(self, make):
        super().__init__()
        self._make = make

    def __missing__(self, name):
        self[name] = made = self._make(name)
        return made


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay")

    def make(name):
        server = start_server(name, TABLES, 0, log_path=folder / f"{name}.log")
        server.wait_ready(START_TIMEOUT_SECS)
        return server

    started = Made(make)
    yield started
    for server in started.values():
        server.stop()


@pytest.fixture(scope="session")
def tables():
    return TABLES


@pytest.fixture(scope="session")
def official(tmp_path_factory):
    with (tmp_path_factory.mktemp("official") / "log").open("w") as log:
        client = Official(log)
        yield client
        client.close()


@pytest.fixture(scope="session")
def backends(servers):
    def make(name):
        address = servers["reverb" if name == "reverb" else "embedded"].address
        return Backend(name, address, ReplayClient(address))

    made = Made(make)
    yield made
    for backend in made.values():
        backend.replay.close()


# README's tests have a run with a real Reverb.
@pytest.fixture(params=[pytest.param("reverb", marks=pytest.mark.gate), "served"])
def backend(request, backends):
    """Yields each backend in turn, its tables empty."""
    chosen = backends[request.param]
    for table in TABLES:
        chosen.replay.reset(table.name)
    return chosen


@pytest.fixture
def replay(backend):
    return backend.replay
