"""Whole runs in this process: the launcher in the calling thread, every role in one of its own.

Roles are the same functions with the same calls over sockets, files and the replay server's
protocol; only processes are missing. Nothing is imported again, and what one run has compiled
serves all others of its shapes.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from rl_sync.addresses import address_of, parts_of
from rl_sync.cluster.process_resources import Addresses, Resources
from rl_sync.cluster.rpc import RpcServer
from rl_sync.cluster.secret import secret_of
from rl_sync.cluster.team import Team
from rl_sync.cluster.topology import layout_of
from rl_sync.launcher import __main__ as launcher
from rl_sync.launcher import command_line
from rl_sync.launcher.processes import run_processes, supervisor
from rl_sync.replay import embedded_server
from rl_sync.replay.tables import TableSpec
from rl_sync.role_names import MASTER, TOGETHER, TRAINER, number_of
from rl_sync.roles.assembly import build, colocation
from rl_sync.roles.exit_status import FAILED
from rl_sync.roles.master.service import MasterServer, call_threads
from rl_sync.settings.config_reading import read_settings
from rl_sync.workdir import Workdir

_NEED_PROCESSES = (
    "--config.trainer.processes=",
    "--config.explorer.processes=",
    "--config.launch.compile_ahead=",
    "--config.launch.hosts=",
)
_log = logging.getLogger(__name__)


class RoleThread:
    """A role in a thread, with what the launcher uses of its process.

    Args:
      name: its process's name.
      log: the file for its failure.
      work: does the role's work.
      end: asks it to end.
    """

    lost, group = "", None

    def __init__(
        self,
        name: str,
        log: Path,
        work: Callable[[], None],
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.log = name, log
        self.terminate, self._work, self._status = end, work, 0
        self._thread = threading.Thread(target=self._do, name=f"role {name}", daemon=True)
        self._thread.start()

    def _do(self) -> None:
        try:
            self._work()
        except Exception:
            _log.exception("%s failed", self.name)
            self._status = FAILED

    def poll(self) -> int | None:
        """See `Process`."""
        return None if self._thread.is_alive() else self._status

    def dump(self) -> None:
        """See `Process`."""

    def kill(self) -> None:
        """Waits for the end, since nobody can kill a thread."""
        self.terminate()
        self._thread.join(10.0)
        assert not self._thread.is_alive(), f"{self.name} has not ended"


def _start(
    name: str,
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    directory: Path | None = None,
) -> RoleThread:
    """Starts a role's thread, as `RoleProcess.start` does a process."""
    assert list(command[1:3]) == ["-m", "rl_sync.roles.process"], command
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    words = dict(word[2:].split("=", 1) for word in command if "=" in word)
    settings = read_settings(json.loads(Workdir(words["workdir"]).config.read_text()))
    addresses = Addresses(words["master"], words["replay"], "", "")
    role = words["role"]
    if role == MASTER:
        master = _Master(settings, addresses.master)
        return RoleThread(name, log, master.serve, master.served.closed.set)
    if role == TOGETHER:
        return RoleThread(
            name, log, lambda: colocation.run_on(settings, addresses, jax.local_devices())
        )
    resources = Resources(layout_of(settings, role), Team(), [0])
    if role == TRAINER:
        return RoleThread(name, log, lambda: build.run_trainer(settings, addresses, resources))
    number = number_of(role)
    return RoleThread(name, log, lambda: build.run_explorer(settings, addresses, number, resources))


class _Master:
    """See `run_master`, which ends at a signal to its process."""

    def __init__(self, settings: Any, address: str) -> None:
        host, port = parts_of(address)
        self.served = MasterServer(settings)
        threads, secret = call_threads(settings.explorers), secret_of(settings.workdir)
        self._server = RpcServer(self.served.answer, port, host, threads=threads, secret=secret)

    def serve(self) -> None:
        self.served.closed.wait()
        self.served.finish()
        self._server.close()


class _ReplayThread:
    """The embedded replay server in this process, with what the launcher uses of its process."""

    backend, is_ready, cannot_be_had = "embedded", True, False

    def __init__(
        self,
        kind: str,
        tables: Sequence[TableSpec],
        port: int,
        *,
        host: str,
        log_path: Path,
        checkpoints: Path,
    ) -> None:
        assert kind == self.backend
        checkpoints.mkdir(parents=True, exist_ok=True)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._server, self.port = embedded_server.start(tables, port, host, checkpoints)
        self.address, self._status = address_of(host, self.port), None
        self.popen = mock.Mock(pid=None)

    def wait_ready(self, timeout_secs: float) -> None:
        del timeout_secs

    def poll(self) -> int | None:
        return self._status

    def stop(self, timeout_secs: float = 0.0) -> None:
        del timeout_secs
        self._server.stop(grace=None).wait()
        self._status = 0


@contextlib.contextmanager
def roles_in_threads() -> Iterator[None]:
    """Lets launchers in this process start threads in place of processes."""
    with (
        mock.patch.object(supervisor.RoleProcess, "start", _start),
        mock.patch.object(run_processes, "start_server", _ReplayThread),
    ):
        yield


def can_run(flags: Sequence[str]) -> bool:
    """Says whether a run of these flags needs no process of its own for any role."""
    return not any(flag.startswith(_NEED_PROCESSES) for flag in flags)


def run(words: Sequence[str]) -> tuple[int, str]:
    """Makes a run; returns the launcher's exit status and its output.

    Where trainer and explorers would form a cluster, they share this process's devices instead.
    """
    settings = read_settings(command_line.parse(words).config.to_dict())
    if settings.is_joint:
        words = [*words, "--config.launch.colocate=true"]
    if settings.is_joint or settings.launch.colocate:
        words = [*words, "--config.launch.share_devices=true"]
    output = io.StringIO()
    with (
        roles_in_threads(),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        status = launcher.main(words)
    return status, output.getvalue()
