"""One Reverb server, one embedded server, and one official client, for all tests of a session."""

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


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """Starts both servers at the same time."""
    folder = tmp_path_factory.mktemp("replay")
    started = {
        name: start_server(name, TABLES, 0, log_path=folder / f"{name}.log")
        for name in ("reverb", "embedded")
    }
    try:
        for server in started.values():
            server.wait_ready(START_TIMEOUT_SECS)
        yield started
    finally:
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
def backends(official, servers):
    """Makes both backends; the official client starts meanwhile, as it is requested here."""
    made = [
        Backend("reverb", servers["reverb"].address, ReplayClient(servers["reverb"].address)),
        Backend("served", servers["embedded"].address, ReplayClient(servers["embedded"].address)),
    ]
    yield {backend.name: backend for backend in made}
    for backend in made:
        backend.replay.close()


@pytest.fixture(params=["reverb", "served"])
def backend(request, backends):
    """Yields each backend in turn, its tables empty."""
    chosen = backends[request.param]
    for table in TABLES:
        chosen.replay.reset(table.name)
    return chosen


@pytest.fixture
def replay(backend):
    return backend.replay
