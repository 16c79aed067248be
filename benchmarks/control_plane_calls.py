"""The master's real server under calls of many explorers, over connections of their own.

`benchmarks/control_plane.py --calls` prints the table of it. The server runs in a process as in a
run, with its journal on the disk of the temporary directory. Explorers are connections of one
client process: each has its own connection, as the processes of explorers have. They generate
nothing. There are three parts:

- *waiting*: every explorer asks for work before the first weights are published. While all wait,
  the trainer's side sends signs of life one after the other, whose answers are timed. Then version
  0 is published, and the time counts until the last explorer has its leases.
- *signs of life*: some threads send heartbeats of all explorers in turn, as fast as they can.
- *work*: the same threads ask for leases and report their groups as buffered; whenever a batch is
  whole, a step is reported and a version published. Each lease, report, step and version is on disk
  before it is answered.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import psutil

from rl_sync.cluster.ports import free_ports
from rl_sync.cluster.rpc import PeerLostError, RpcClient
from rl_sync.cluster.secret import secret_of
from rl_sync.configs import arithmetic
from rl_sync.messages.events import (
    BatchTrained,
    GroupsBuffered,
    LeaseGrant,
    Position,
    VersionPublished,
)
from rl_sync.messages.master_calls import (
    AskLease,
    CloseLedger,
    Happened,
    Heartbeat,
    Trained,
    TrainerReady,
)
from rl_sync.messages.run_status import RoleStatus
from rl_sync.role_names import TRAINER, explorer_name
from rl_sync.roles.master.service import run_master
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings

GROUPS_EACH, THREADS, DEADLINE_SECS, WAIT_SECS, BEATS = 2, 8, 120.0, 1.0, 20


def settings_of(workdir: str, explorers: int, lease: int = GROUPS_EACH) -> RunSettings:
    """Returns the settings of a run with many explorers."""
    config = arithmetic.get_config()
    config.workdir = workdir
    mode = "multi_explorer" if explorers > 1 else "asynchronous"
    config.sync.update({"mode": mode, "max_staleness": 8})
    config.explorer.update({"count": explorers, "groups_per_lease": lease})
    config.trainer.update(
        {"groups_per_step": lease * explorers, "group_size": 2, "steps": 1_000_000}
    )
    config.task.arithmetic.update({"greatest_operand": 19, "held_out_problems": 8})
    config.reward.workers = 0
    return read_settings(config.to_dict())


class Load(NamedTuple):
    """Calls of a part.

    Attributes:
      calls: their number.
      secs: the time that they took together.
      cpu_secs: CPU time of the master.
    """

    calls: int
    secs: float
    cpu_secs: float


@dataclasses.dataclass
class Answers:
    """Measurements of the server.

    Attributes:
      idle_bytes: resident memory before the first connection of an explorer.
      bytes_each, files_each: memory and file descriptors of the server that each explorer added,
        while all wait for work.
      threads: threads of the server then.
      beat_secs: seconds until a sign of life was answered then.
      woken_secs: seconds from a publication until the last explorer had its leases.
      granted: number of groups that were leased at the publication.
      life, work: the other parts.
    """

    idle_bytes: int
    bytes_each: float
    files_each: float
    threads: int
    beat_secs: list[float]
    woken_secs: float
    granted: int
    life: Load
    work: Load


def heartbeat(role: str) -> Heartbeat:
    """Returns a sign of life."""
    status = RoleStatus(role=role, activity="rollout", since_secs=1.0, step=3, version=2)
    spent = {"rollout": 12.5, "wait": 3.25, "pull": 0.75}
    return Heartbeat(status, role, 1, "at rollout (step 3)", spent)


class Explorers:
    """The explorers of a run, each with a connection to the master.

    Args:
      connect: makes a connection.
      count: number of explorers.
      lease: groups of a lease.
    """

    def __init__(
        self, connect: Callable[[], RpcClient], count: int, lease: int = GROUPS_EACH
    ) -> None:
        self.trainer = connect()
        self.clients = {number: connect() for number in range(1, count + 1)}
        self._requests = itertools.count(1)
        self._lock = threading.Lock()
        self._buffered: collections.deque[int] = collections.deque()
        self._batch, self.step = lease * count, 0

    def begin(self) -> None:
        """Reports that the trainer is ready."""
        self.trainer.call(TrainerReady(Position(0, 0, (), 0)), DEADLINE_SECS)

    def beat(self, number: int) -> None:
        """Sends a sign of life of an explorer."""
        self.clients[number].call(heartbeat(explorer_name(number)), DEADLINE_SECS)

    def beat_of_trainer(self) -> float:
        """Sends a sign of life of the trainer; returns the seconds until its answer."""
        began = time.monotonic()
        self.trainer.call(heartbeat(TRAINER), DEADLINE_SECS)
        return time.monotonic() - began

    def publish(self) -> None:
        """Publishes the version of the last step."""
        self.trainer.call(Happened(VersionPublished(self.step)), DEADLINE_SECS)

    def ask(self, number: int, wait_secs: float = 0.0) -> list[int]:
        """Asks for work of an explorer; returns its leases, none if it is held back."""
        call = AskLease(number, poll_secs=wait_secs, request=next(self._requests))
        answer = self.clients[number].call(call, DEADLINE_SECS)
        return [one.lease_id for one in answer.leases] if isinstance(answer, LeaseGrant) else []

    def report(self, number: int, leases: list[int]) -> int:
        """Reports groups as buffered, and steps on them; returns the number of calls."""
        self.clients[number].call(Happened(GroupsBuffered(tuple(leases))), DEADLINE_SECS)
        with self._lock:
            self._buffered += leases
            if len(self._buffered) < self._batch:
                return 1
            batch = [self._buffered.popleft() for _ in range(self._batch)]
            self.step += 1
            event = BatchTrained(self.step, tuple(batch))
            self.trainer.call(Trained(event, {"loss": 0.0}, {"train": 1.0}), DEADLINE_SECS)
            self.publish()
        return 3

    def close(self) -> None:
        """Closes the ledger, so that the master ends, and all connections."""
        with contextlib.suppress(PeerLostError):
            self.trainer.call(CloseLedger(), DEADLINE_SECS)
        for client in (self.trainer, *self.clients.values()):
            client.close()


@contextlib.contextmanager
def master_of(
    explorers: int, lease: int = GROUPS_EACH
) -> Iterator[tuple[psutil.Process, Callable[[], RpcClient]]]:
    """Starts a master; yields its process, and a function that makes a connection to it."""
    with tempfile.TemporaryDirectory() as directory:
        settings = settings_of(directory, explorers, lease)
        (port,) = free_ports("127.0.0.1", 1)
        address = f"127.0.0.1:{port}"
        secret = secret_of(directory)
        started = multiprocessing.get_context("spawn").Process(
            target=run_master, args=(settings, address)
        )
        started.start()
        try:

            def connect() -> RpcClient:
                return RpcClient(address, "master", secret, own_connection=True)

            _await(connect)
            assert started.pid is not None
            yield psutil.Process(started.pid), connect
            started.join(DEADLINE_SECS)
        finally:
            started.kill()


def _await(connect: Callable[[], RpcClient]) -> None:
    """Waits until the master answers."""
    with contextlib.closing(connect()) as client:
        until = time.monotonic() + DEADLINE_SECS
        while True:
            try:
                client.call(heartbeat(TRAINER), DEADLINE_SECS)
                return
            except PeerLostError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)


def loaded(master: psutil.Process, secs: float, explorers: int, do: Callable[[int], int]) -> Load:
    """Lets threads work for explorers in turn, for some seconds.

    Args:
      do: makes the calls of an explorer; returns their number.
    """
    until, calls = time.monotonic() + secs, [0] * THREADS

    def drive(thread: int) -> None:
        for number in itertools.cycle(range(1 + thread, explorers + 1, THREADS)):
            if time.monotonic() > until:
                return
            calls[thread] += do(number)

    threads = [threading.Thread(target=drive, args=(i,)) for i in range(min(THREADS, explorers))]
    began, cpu = time.monotonic(), _cpu_secs(master)
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return Load(sum(calls), time.monotonic() - began, _cpu_secs(master) - cpu)


def _cpu_secs(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def measure_calls(explorers: int, secs: float) -> Answers:
    """Measures a master with a number of explorers; two parts take `secs` seconds each."""
    with master_of(explorers) as (master, connect):
        idle_bytes, idle_files = master.memory_info().rss, master.num_fds()
        crowd = Explorers(connect, explorers)
        try:
            crowd.begin()
            leases: dict[int, list[int]] = {}

            def wait(number: int) -> None:
                while not (found := crowd.ask(number, WAIT_SECS)):
                    pass
                leases[number] = found

            waiting = [
                threading.Thread(target=wait, args=(number,)) for number in range(1, explorers + 1)
            ]
            for one in waiting:
                one.start()
            time.sleep(2 * WAIT_SECS)
            beats = [crowd.beat_of_trainer() for _ in range(BEATS)]
            grown = master.memory_info().rss - idle_bytes, master.num_fds() - idle_files
            threads = master.num_threads()
            began = time.monotonic()
            crowd.publish()
            for one in waiting:
                one.join()
            woken_secs = time.monotonic() - began
            granted = sum(map(len, leases.values()))
            for number, found in leases.items():
                crowd.report(number, found)

            def live(number: int) -> int:
                crowd.beat(number)
                return 1

            def work(number: int) -> int:
                found = crowd.ask(number)
                return 1 + crowd.report(number, found) if found else 1

            life = loaded(master, secs, explorers, live)
            worked = loaded(master, secs, explorers, work)
        finally:
            crowd.close()
    return Answers(
        idle_bytes=idle_bytes,
        bytes_each=grown[0] / explorers,
        files_each=grown[1] / explorers,
        threads=threads,
        beat_secs=beats,
        woken_secs=woken_secs,
        granted=granted,
        life=life,
        work=worked,
    )


def figures(found: Answers) -> dict[str, float]:
    """Returns the figures of the table, by the heads of its rows."""
    return {
        "signs of life a second": found.life.calls / found.life.secs,
        "CPU for a sign of life, µs": 1e6 * found.life.cpu_secs / found.life.calls,
        "calls for work a second": found.work.calls / found.work.secs,
        "CPU for a call for work, µs": 1e6 * found.work.cpu_secs / found.work.calls,
        "all wait: median answer, ms": 1e3 * statistics.median(found.beat_secs),
        "all wait: slowest answer, ms": 1e3 * max(found.beat_secs),
        "publication until all have work, s": found.woken_secs,
        "file descriptors an explorer": found.files_each,
        "memory an explorer, kB": found.bytes_each / 1e3,
        "memory without explorers, MB": found.idle_bytes / 1e6,
        "threads": found.threads,
    }
