"""The processes of a run: the replay server, the master, and the other roles' programs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from rl_sync.addresses import address_of
from rl_sync.cluster.host_names import own_address
from rl_sync.cluster.ports import HeldPorts
from rl_sync.cluster.rpc import RpcClient
from rl_sync.cluster.secret import forget, is_open, secret_of
from rl_sync.cluster.topology import (
    Member,
    cluster_size,
    members_of,
    programs_of,
    role_environment,
)
from rl_sync.isolation.machine_limits import limit_met
from rl_sync.launcher.processes.stack_dump import dump_stacks
from rl_sync.launcher.processes.supervisor import OtherMachines, Process, RoleProcess, Supervisor
from rl_sync.references import resolve
from rl_sync.replay.replay_interface import Backend
from rl_sync.replay.server_process import ReplayServerError, ServerProcess, start_server
from rl_sync.role_names import MASTER
from rl_sync.roles.assembly.replay_tables import replay_tables
from rl_sync.roles.exit_status import FAILED
from rl_sync.settings.launch_settings import JOIN
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings
from rl_sync.workdir import Workdir

MACHINES = "rl_sync.addons.clusters.hosts.machines:Machines"
"""Reference to the `OtherMachines` of a run."""
_LOOK_SECS = 0.1
_KILL_SECS = 0.5
_LOOPBACK = "127.0.0.1"


class RunFailedError(RuntimeError):
    """Raised if a run failed; the message is for the user.

    Attributes:
      status: exit status of the launcher.
    """

    def __init__(self, why: str, status: int = FAILED):
        super().__init__(why)
        self.status = status


class _Head(NamedTuple):
    """Addresses of servers of a program's first process."""

    coordinator: str
    team: str


class _Heads:
    """Finds addresses for the first processes of programs, once for each start.

    Args:
      host: address of this machine.
      free: returns free ports of this machine.
      machines: the other machines; None without any.
    """

    def __init__(
        self, host: str, free: Callable[[int], list[int]], machines: OtherMachines | None
    ) -> None:
        self._host, self._free, self._machines = host, free, machines
        self._found: dict[str, _Head] = {}

    def of(self, program: str) -> _Head | None:
        """Returns the addresses of a program; None if its machine has not joined yet."""
        if program in self._found:
            return self._found[program]
        host: str | None = self._host
        if self._machines is not None and self._machines.has(program):
            host, ports = self._machines.place(program, 2)
        else:
            ports = self._free(2)
        if host is None:
            return None
        self._found[program] = _Head(*(address_of(host, port) for port in ports))
        return self._found[program]


@dataclasses.dataclass
class ReplayProcess:
    """The replay server, as a process of the supervisor."""

    name: str
    log: Path
    server: ServerProcess
    lost: str = ""

    @property
    def group(self) -> int:
        return self.server.popen.pid

    def poll(self) -> int | None:
        return self.server.poll()

    def dump(self) -> None:
        """See `Process`; neither server answers a signal with its stacks."""
        dump_stacks(self.group, self.log, answers=False)

    def terminate(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.stop(_KILL_SECS)


class RunProcesses:
    """Starts the processes of a run, each with its own ports.

    Args:
      settings: the run's settings.
      supervisor: the supervisor of the processes.
      continues: whether the master goes on from the journal of an earlier attempt.

    Attributes:
      server: the replay server; None before `start`, and if the user runs it or none is needed.
    """

    def __init__(self, settings: RunSettings, supervisor: Supervisor, continues: bool = False):
        self._settings, self._supervisor = settings, supervisor
        self._continues = continues
        self._workdir = Workdir(settings.workdir)
        launch = settings.launch
        others = [one for one in launch.elsewhere.values() if one != JOIN]
        self._host = own_address("launch.host", launch.host, others) if launch.host else _LOOPBACK
        self._ports = HeldPorts(self._host, launch.servers)
        self._machines: OtherMachines | None = None
        self._addresses: list[str] = []
        self._devices: dict[str, dict[str, str]] = {}
        self.server: ServerProcess | None = None
        self._replay_since_secs = 0.0
        self._why_embedded: str | None = None

    def start(self) -> RpcClient:
        """Starts all processes; returns a client of the master.

        Raises:
          ConfigError: a port is taken.
          RunFailedError: a process cannot be started, or too few ports are free.
        """
        settings = self._settings
        secret = self._new_secret()
        if settings.launch.elsewhere:
            self._machines = resolve(MACHINES)(settings, self._host, secret)
        free = self._free(2)
        port = _port(settings.master.port, "master.port", free[0], self._host)
        master = address_of(self._host, port)
        replay = settings.replay.address
        if not replay and settings.explorers:
            # The replay server starts slowest, so it starts first.
            replay = self._start_replay(free[1])
        # Without explorers there is no replay server, and nobody uses this address.
        replay = replay or address_of(self._host, free[1])
        self._devices = role_environment(settings, os.environ)
        self._addresses = [f"--master={master}", f"--replay={replay}"]
        flags = ["--recover", "--continues"] if self._continues else []
        self._start_role(MASTER, MASTER, lambda: [*self._addresses, *flags])
        self.start_programs(programs_of(settings))
        return RpcClient(master, "master", secret)

    def _free(self, count: int) -> list[int]:
        """Returns ports that are free, and are held.

        Raises:
          RunFailedError: too few are free.
        """
        try:
            return self._ports.take(count)
        except OSError as error:
            raise RunFailedError(limit_met(error) or str(error)) from error

    def _new_secret(self) -> str:
        """Makes the secret that only the processes of this run know."""
        forget(self._workdir)
        try:
            secret = secret_of(self._workdir)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if is_open(self._workdir):
            print(
                f"Others on this machine can read {self._workdir.secret}, and so call the run's"
                " processes: its file system does not support file modes."
            )
        return secret

    def restart_master(self) -> None:
        """Starts the master again, at its address and from its journal."""
        self._start_role(MASTER, MASTER, lambda: [*self._addresses, "--recover"])

    def restart_replay(self) -> None:
        """Starts the replay server again, at its address and with its newest checkpoint.

        Raises:
          RunFailedError: it cannot be started.
        """
        assert self.server is not None, "the replay server is the user's"
        self._serve_replay(self.server.backend, self.server.port)

    def start_programs(self, programs: Sequence[str]) -> None:
        """Starts all processes of programs, with new ports: old ones may still be in use.

        Those on machines that have not joined yet start as soon as these have.

        Raises:
          RunFailedError: too few ports are free.
        """
        settings = self._settings
        heads = _Heads(self._host, self._free, self._machines)
        # With collective transfer all programs are in the trainer's cluster.
        for member in members_of(settings):
            if member.program not in programs:
                continue
            cluster = programs[0] if settings.is_joint else member.program
            needed = [("--coordinator", cluster)] * (cluster_size(settings, member.program) > 1)
            needed += [("--team", member.program)] * (settings.processes_of(member.program) > 1)
            arguments = functools.partial(self._arguments, member, needed, heads)
            self._start_role(member.name, member.program, arguments)

    def _arguments(
        self, member: Member, needed: Sequence[tuple[str, str]], heads: _Heads
    ) -> list[str] | None:
        """Returns the arguments of a program's process; None if an address is not known yet.

        Args:
          needed: flags for addresses of a program's first process, and the programs.
        """
        own = [*self._addresses, f"--process={member.process}"]
        for flag, program in needed:
            if (head := heads.of(program)) is None:
                return None
            own.append(f"{flag}={head.coordinator if 'coord' in flag else head.team}")
        return own

    def _start_role(
        self, name: str, role: str, arguments: Callable[[], Sequence[str] | None]
    ) -> None:
        """Starts one process of a role, as soon as its arguments are known.

        Args:
          arguments: returns its arguments, or None if an address is not known yet.
        """
        process = self._started(name, role, arguments)
        if process is None:
            assert self._machines is not None, "only machines may be missing"
            start = functools.partial(self._started, name, role, arguments)
            process = self._machines.awaited(name, start)
        self._supervisor.add(process)

    def _started(
        self, name: str, role: str, arguments: Callable[[], Sequence[str] | None]
    ) -> Process | None:
        """Starts one process of a role here or elsewhere; returns None if it cannot start yet."""
        if (others := arguments()) is None:
            return None
        own = [f"--role={role}", *others]
        if name in self._settings.launch.elsewhere and self._machines is not None:
            return self._machines.start(name, own)
        command = [sys.executable, "-m", "rl_sync.roles.process", *own]
        command += [f"--workdir={self._workdir}", "--lifeline"]
        log = self._workdir.log(name)
        return RoleProcess.start(name, command, log, self._devices.get(name, {}))

    def _start_replay(self, free: int) -> str:
        """Starts the replay server and returns its address, before it is ready."""
        settings = self._settings.replay
        if not self._continues:  # The leases of an earlier master are over.
            shutil.rmtree(self._workdir.replay_checkpoints, ignore_errors=True)
        port = _port(settings.port, "replay.port", free, self._host)
        try:
            self._serve_replay("reverb" if self._is_auto else cast(Backend, settings.backend), port)
        except RunFailedError as error:
            if not self._is_auto:
                raise
            self._serve_embedded(port, str(error))
        return address_of(self._host, port)

    @property
    def _is_auto(self) -> bool:
        return self._settings.replay.backend == "auto"

    def _serve_replay(self, backend: Backend, port: int) -> None:
        log = self._workdir.log("replay")
        try:
            self.server = start_server(
                backend,
                replay_tables(self._settings),
                port,
                host=self._host,
                log_path=log,
                checkpoints=self._workdir.replay_checkpoints,
            )
        except ReplayServerError as error:
            raise RunFailedError(str(error)) from error
        self._replay_since_secs = time.monotonic()
        self._supervisor.add(ReplayProcess("replay", log, self.server))

    def _serve_embedded(self, port: int, why: str) -> None:
        """Starts the embedded server in place of Reverb's, and says so."""
        self._why_embedded = why.splitlines()[0]
        print(
            "The run uses the embedded replay buffer, as Reverb's environment cannot be installed"
            " here (replay.backend=auto). With replay.backend=reverb the run would end and say why."
        )
        self._serve_replay("embedded", port)

    def _record_backend(self) -> None:
        """Records the kind of server that the run uses; see `Workdir.replay_backend`."""
        assert self.server is not None
        record = {"backend": self.server.backend, "why": self._why_embedded}
        self._workdir.replay_backend.parent.mkdir(parents=True, exist_ok=True)
        self._workdir.replay_backend.write_text(json.dumps(record))

    def replay_ready(self) -> bool:
        """Returns, after a short wait, whether the replay server is ready; True for the user's own.

        With `replay.backend=auto` the embedded server replaces a Reverb server that does not start.

        Raises:
          RunFailedError: the server has ended, or takes too long to start.
        """
        if self.server is None:
            return True
        server = self.server
        try:
            server.wait_ready(_LOOK_SECS)
        except ReplayServerError as error:
            waited_secs = time.monotonic() - self._replay_since_secs
            is_late = waited_secs >= self._settings.launch.start_secs
            if server.poll() is None and not is_late:
                return False
            had = server.backend == "embedded" or not (server.cannot_be_had or is_late)
            if had or not self._is_auto:
                raise RunFailedError(str(error)) from error
            self._supervisor.end(["replay"])
            self._serve_embedded(server.port, str(error))
            return False
        self._record_backend()
        return True

    def look(self) -> None:
        """Notices machines that were lost."""
        if self._machines is not None:
            self._machines.look()

    def close(self, status: int) -> None:
        """Releases the ports and deletes the secret, after the processes have ended.

        Args:
          status: exit status of the run, for machines that have joined.
        """
        if self._machines is not None:
            self._machines.close(status)
        self._ports.close()
        with contextlib.suppress(OSError):  # The next run replaces it.
            forget(self._workdir)


def _port(wanted: int, setting: str, free: int, host: str) -> int:
    """Returns the wanted port if it is free, or the free port if the wanted port is 0."""
    if wanted == 0:
        return free
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, wanted))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"Port {wanted} ({setting}) cannot be used: {error}. Choose another with"
                f" --config.{setting}, or 0 for any free one."
            ) from error
    return wanted
