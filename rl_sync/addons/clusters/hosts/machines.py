"""The other machines of a run, which the launcher has join, or which join by themselves."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rl_sync.addons.clusters.hosts.host_desk import HostDesk
from rl_sync.addons.clusters.hosts.remote_process import AwaitedProcess, RemoteProcess
from rl_sync.cluster import malloc
from rl_sync.launcher.processes.supervisor import Process, RoleProcess
from rl_sync.settings.launch_settings import JOIN
from rl_sync.settings.records import ConfigError
from rl_sync.settings.run_settings import RunSettings
from rl_sync.workdir import Workdir

_CARRIED = ("GLIBC_TUNABLES", "HF_HOME", "JAX_", "LIBTPU_", "NCCL_", "TPU_", "XLA_")
"""Beginnings of the environment variables that a remote machine gets."""


class Machines:
    """Has machines join a run, and starts processes on them.

    Args:
      settings: the run's settings.
      host: address of this machine, as the others reach it.
      secret: secret of the run.

    Raises:
      ConfigError: the port is taken, or files that the config names cannot be sent.
    """

    def __init__(self, settings: RunSettings, host: str, secret: str):
        self._launch, self._secret = settings.launch, secret
        self._workdir = Workdir(settings.workdir)
        try:
            self._desk = HostDesk(settings, host, settings.launch.port, secret, Path.cwd())
        except ValueError as error:
            raise ConfigError(
                f"launch.port={settings.launch.port} cannot be used: {error}"
            ) from error
        self._shells: dict[str, RoleProcess] = {}
        joining = sorted(name for name, at in self._launch.elsewhere.items() if at == JOIN)
        if joining:
            print(
                f"Machines join at {self._desk.address}: {', '.join(joining)}"
                f" (python -m launcher join --run={self._desk.address} --process=NAME)"
            )

    def has(self, name: str) -> bool:
        """Says whether a process runs on another machine."""
        return name in self._launch.elsewhere

    def place(self, name: str, count: int) -> tuple[str | None, list[int]]:
        """Returns the address of a process's machine and free ports there, or None before."""
        host = self._desk.host_of(name)
        ports = None if host is None else self._desk.take_ports(name, count)
        return (host, ports) if ports is not None else (None, [])

    def start(self, name: str, arguments: Sequence[str]) -> Process | None:
        """Starts a process; returns None if its machine has not joined.

        Args:
          arguments: arguments of `rl_sync.roles.process`.
        """
        attempt = self._desk.start(name, arguments, {})
        if attempt is None:
            return None
        return RemoteProcess(self._desk, name, attempt, self._workdir.log(name))

    def awaited(self, name: str, start: Callable[[], Process | None]) -> Process:
        """Returns a process that starts once its machine has joined; has that machine join.

        Args:
          start: starts the process, or returns None if its machine or another one is missing.
        """
        address = self._launch.elsewhere.get(name, JOIN)
        shell = None if address == JOIN else self._joining(address)

        def missing() -> str:
            if name in self._launch.elsewhere and self._desk.host_of(name) is None:
                return f"no machine has joined as {name}"
            return "the machine of another process that it needs has not joined"

        return AwaitedProcess(
            name,
            self._workdir.log(name),
            start,
            missing,
            self._launch.start_secs,
            shell,
            self._desk.had(name),
        )

    def look(self) -> None:
        """Notices machines that were lost."""
        self._desk.look()
        for address, shell in self._shells.items():
            if (status := shell.poll()) is not None:
                self._desk.lose(
                    self._at(address),
                    f"the remote shell to its machine {address} has ended with exit status"
                    f" {status} ({shell.log})",
                )

    def close(self, status: int) -> None:
        """Lets the machines leave, with the exit status of the run."""
        self._desk.end(status)
        for shell in self._shells.values():
            shell.kill()

    def _at(self, address: str) -> list[str]:
        """Returns the processes at an address."""
        return [name for name, at in self._launch.elsewhere.items() if at == address]

    def _joining(self, address: str) -> Process:
        """Returns the remote shell by which a machine joins, started again if it has ended."""
        shell = self._shells.get(address)
        if shell is None or shell.poll() is not None:
            name = f"host-{re.sub(r'[^A-Za-z0-9_.-]', '_', address)}"
            python = self._launch.remote_python or sys.executable
            command = [python, "-m", "rl_sync.launcher", "join", f"--run={self._desk.address}"]
            command += [f"--process={','.join(self._at(address))}"]
            command += [f"--host={address}", "--lifeline"]
            there = remote_command(self._launch.remote_shell, address, command)
            shell = RoleProcess.start(name, there, self._workdir.log(name), {})
            shell.tell(self._secret)
            self._shells[address] = shell
        return shell


def remote_command(shell: str, host: str, command: Sequence[str]) -> list[str]:
    """Returns the command that starts a command on a remote machine.

    It passes on some environment variables, and starts in this directory if it exists there. The
    command reads the shell's standard input, so it ends when the shell here ends.

    Args:
      shell: `launch.remote_shell`.
      command: the path of a program there, and its arguments.
    """
    environment = malloc.environment(os.environ)
    carried = [
        f"{name}={value}" for name, value in environment.items() if name.startswith(_CARRIED)
    ]
    there = shlex.join(["env", "PYTHONUNBUFFERED=1", *sorted(carried), *command])
    words = [word.format(host=host) for word in shlex.split(shell)]
    return [*words, f"cd {shlex.quote(os.getcwd())} 2>/dev/null; exec {there}"]
