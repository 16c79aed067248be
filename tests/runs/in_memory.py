"""Whole runs in memory: the real master, trainer and explorers, as threads that share objects.

Calls are functions, the replay buffer is a table, and weights are handed over; there are no
sockets, no servers, and no launcher. The records of a run are files of a directory in memory.
Models, loops, schedule and judging are those of every run, so that a run in a mode that is exact
gives the same bits as one by `tests.runs.threads`, in half the time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from rl_sync.checkpoints.snapshot_folder import SnapshotFolder
from rl_sync.cluster.process_resources import Addresses, Resources
from rl_sync.cluster.rpc import PeerGoneError, RemoteError, RpcClient
from rl_sync.cluster.team import Team
from rl_sync.isolation.codec import decode, encode
from rl_sync.launcher import command_line
from rl_sync.launcher.processes import run_text
from rl_sync.learning.train_state import TrainState
from rl_sync.messages.call import Call
from rl_sync.messages.events import ExplorerDied, StopRequested
from rl_sync.messages.master_calls import CloseLedger, Happened
from rl_sync.replay.client import ReplayClient
from rl_sync.replay.replay_interface import Columns, ReplayTimeoutError, Sample
from rl_sync.replay.store import EmbeddedTable, Stored
from rl_sync.replay.tables import TableInfo
from rl_sync.role_names import TRAINER, explorer_name, is_explorer, number_of
from rl_sync.roles.assembly import build
from rl_sync.roles.assembly.replay_tables import TABLE, replay_tables
from rl_sync.roles.master.service import MasterServer
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.request import FinishedCompletion
from rl_sync.settings.config_reading import read_settings
from rl_sync.transfers.local import LocalPublisher
from rl_sync.workdir import Workdir

_FEWER = ("--config.checkpoint.every_steps=0",)
_HANDED_OVER = (
    "--config.sync.transfer=collective",
    "--config.launch.colocate=true",
    "--config.launch.share_devices=true",
)
_TOLD_SECS = 0.3
"""Time in which the thread that tells tokens ends its call, before its explorer dies."""
_log = logging.getLogger(__name__)


class _Link(RpcClient):
    """A client of a master in the same process; messages are encoded as between processes.

    Args:
      master: the master.
    """

    def __init__(self, master: MasterServer) -> None:
        self._master = master

    def call(self, call: Call[Any], deadline_secs: float) -> Any:
        """See `RpcClient`."""
        del deadline_secs
        if self._master.closed.is_set():
            raise PeerGoneError("The run's master has closed.")
        try:
            answer = self._master.answer(decode(encode(call)))
        except Exception as error:
            _log.exception("%s failed", type(call).__name__)
            raise RemoteError(f"{type(error).__name__}: {error}") from error
        return decode(encode(answer))

    def close(self) -> None:
        """See `RpcClient`."""


class _Buffer(ReplayClient):
    """A client of a replay buffer in the same process.

    Args:
      table: its only table.
    """

    may_restart, breaks, address = False, 0, "memory"

    def __init__(self, table: EmbeddedTable) -> None:
        self._table = table
        self._inserted: list[Stored] = []

    def insert_many(
        self,
        table: str,
        items: Sequence[Columns],
        *,
        priorities: Sequence[float] | None = None,
        timeout_secs: float,
    ) -> None:
        """See `ReplayClient`."""
        assert table == TABLE
        weights = [1.0] * len(items) if priorities is None else priorities
        for columns, weight in zip(items, weights, strict=True):
            copies = {name: np.array(column) for name, column in columns.items()}
            self._inserted.append(Stored(id(copies), weight, copies))
            self._table.submit(self._inserted[-1])
        self.flush(timeout_secs)

    def flush(self, timeout_secs: float) -> None:
        """See `ReplayClient`."""
        if self._table.wait_inserted(self._inserted, time.monotonic() + timeout_secs):
            raise ReplayTimeoutError("The table in memory has no room.")
        self._inserted.clear()

    def sample(self, table: str, count: int = 1, *, timeout_secs: float) -> list[Sample]:
        """See `ReplayClient`."""
        assert table == TABLE
        found: list[Sample] = []
        deadline = time.monotonic() + timeout_secs
        while len(found) < count and (drawn := self._table.sample(count - len(found), deadline)):
            for one in drawn:
                fields = {**vars(one)}
                columns = {name: column.copy() for name, column in fields.pop("payload").items()}
                found.append(Sample(**fields, columns=columns))
        if not found:
            raise ReplayTimeoutError("No group came into the table in memory.")
        return found

    def info(self, timeout_secs: float = 0.0) -> dict[str, TableInfo]:
        """See `ReplayClient`."""
        del timeout_secs
        return {TABLE: self._table.info()}

    def reset(self, table: str) -> None:
        """See `ReplayClient`."""
        assert table == TABLE
        self._table.reset()

    def close(self) -> None:
        """See `ReplayClient`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Disk(SnapshotFolder):
    """Snapshots in memory, which keeps all of them and from which no run resumes.

    Attributes:
      saved: the states by their steps.
    """

    saved: dict[int, TrainState]

    def steps(self) -> list[int]:
        """See `SnapshotFolder`."""
        return sorted(self.saved)

    def newest(self) -> int | None:
        """See `SnapshotFolder`."""
        return max(self.saved, default=None)

    def save(self, step: int, state: TrainState, *_: Any, **__: Any) -> None:
        """See `SnapshotFolder`."""
        self.saved[step] = self.copied(state)


class ExplorerKilledError(BaseException):
    """Raised in an explorer's thread, which then ends as a killed process does."""


@contextlib.contextmanager
def _deaths(at: Collection[int]) -> Iterator[None]:
    """Kills an explorer after these steps of all explorers' engines, counted from 1."""
    step, taken = Engine.step, itertools.count(1)

    def fatal(engine: Engine) -> list[FinishedCompletion]:
        found = step(engine)
        if is_explorer(threading.current_thread().name) and next(taken) in at:
            time.sleep(_TOLD_SECS)
            raise ExplorerKilledError
        return found

    with mock.patch.object(Engine, "step", fatal):
        yield


def run(words: Sequence[str], deaths: Collection[int] = ()) -> str:
    """Makes a run; returns the launcher's report of it.

    Weights are handed over whatever the transfer, which changes no bit. Before the last step,
    snapshots are saved only if the words ask for them.

    Args:
      words: command line of a run, without the program's name.
      deaths: numbers of engine steps after which an explorer dies, and is started again.

    Raises:
      Exception: the error of the first role that failed.
    """
    settings = read_settings(command_line.parse([*_FEWER, *words, *_HANDED_OVER]).config.to_dict())
    workdir = Workdir(settings.workdir)
    Path(workdir).mkdir(parents=True, exist_ok=True)
    workdir.config.write_text(json.dumps(settings.resolved()))
    master = MasterServer(settings)
    (spec,) = replay_tables(settings)
    table = EmbeddedTable(spec)
    saved: dict[int, TrainState] = {}
    ports = build.Ports(
        master=lambda *_: _Link(master),
        replay=lambda *_, **__: _Buffer(table),
        disk=lambda directory, *_: _Disk(directory=directory, saved=saved),
    )
    nowhere = Addresses("", "", "", "")
    # One end that takes nothing: an explorer that was killed asks again for what it had taken.
    weights = LocalPublisher(settings.explorers + 1, keep=settings.schedule.versions_kept)
    failures: list[Exception] = []

    def resources(role: str) -> Resources:
        mesh = settings.mesh_of(role)
        layout = settings.layout(role, mesh.mesh(jax.local_devices()[: mesh.devices]))
        return Resources(layout, Team(), [0], weights)

    def do(role: str, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(settings, nowhere, *arguments, resources(role), ports)
        except ExplorerKilledError:
            master.answer(Happened(ExplorerDied(number_of(role))))
            do(role, work, *arguments)
        except Exception as error:
            failures.append(error)
            master.answer(Happened(StopRequested(f"{role} failed")))

    work = [
        (explorer_name(one), build.run_explorer, one) for one in range(1, settings.explorers + 1)
    ]
    threads = [
        threading.Thread(target=do, args=role, name=role[0], daemon=True)
        for role in [(TRAINER, build.run_trainer), *work]
    ]
    with _deaths(deaths):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(settings.launch.wait_secs)
            assert not thread.is_alive(), f"{thread.name} has not ended: {failures}"
    summary = master.answer(CloseLedger())
    master.finish()
    if failures:
        raise failures[0]
    assert summary.result.failed is None, summary.result.failed
    return run_text.final_report(settings, summary)
