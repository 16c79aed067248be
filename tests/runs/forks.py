"""A process that has imported what a run needs, and forks launchers and roles from itself.

Most of a short run's time is imports, which its launcher and its roles would each do again. Before
a fork nothing uses JAX, gRPC or a thread: imports start none but OpenBLAS's, which it starts again
in a fork. Forks have the environment of the request, but JAX has read its own variables before: it
must be the same in all requests.

python -m tests.runs.forks launcher --config=…

runs a launcher that is no fork, whose roles are.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import logging
import os
import runpy
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

POSSIBLE = sys.platform == "linux"
SERVER = "RL_SYNC_TEST_FORKS"
"""The environment variable that names the server's socket to launchers."""

_LENGTH, _NUMBER = struct.Struct("<I"), struct.Struct("<i")
_PR_SET_PDEATHSIG = 1
_ARG_START = 45  # Fields of /proc/…/stat after the name, where the command line begins and ends.
_MOST_WORDS = 4096
_ROOT = Path(__file__).resolve().parents[2]


class Fork:
    """A process that a server has forked, with what launchers use of `subprocess.Popen`.

    Its standard input is a pipe that closes with this process.

    Args:
      server: the server's socket.
      words: what `python -m` would be followed by.
      output: the descriptor of the file of its output.
    """

    def __init__(
        self, server: str, words: Sequence[str], output: int, environment: Mapping[str, str]
    ) -> None:
        request = json.dumps([list(words), dict(environment)]).encode()
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(server)
        theirs, self._lifeline = os.pipe()
        socket.send_fds(self._connection, [_LENGTH.pack(len(request))], [theirs, output])
        os.close(theirs)
        self._connection.sendall(request)
        self.pid = self._number()

    def poll(self) -> int | None:
        """Returns the exit status, negative for a signal; None while it runs."""
        with contextlib.suppress(BlockingIOError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout_secs: float | None = None) -> int:
        """Waits for the end, and returns the exit status.

        Raises:
          TimeoutError: it runs still; BlockingIOError if there was no time to wait.
        """
        if self.returncode is None:
            self._connection.settimeout(timeout_secs)
            self.returncode = self._number()
            self._connection.close()
            os.close(self._lifeline)
        return self.returncode

    def _number(self) -> int:
        data = self._connection.recv(_NUMBER.size, socket.MSG_WAITALL)
        assert len(data) == _NUMBER.size, "the fork server is gone"
        number: int = _NUMBER.unpack(data)[0]
        return number


class ForkServer:
    """Starts a server, which ends with this process, and its forks with it.

    Args:
      environment: its variables, which all requests have too.

    Attributes:
      variables: the environment of launchers whose roles it forks.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        from rl_sync.cluster import malloc

        directory = tempfile.mkdtemp(prefix="forks-")  # Sockets have short names only.
        self._path = os.path.join(directory, "socket")
        self.variables = {**environment, SERVER: self._path}
        self._environment = malloc.environment({**os.environ, **self.variables})
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(self._path)
            listening.listen(64)
            room = "-" * _MOST_WORDS
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "tests.runs.forks", str(listening.fileno()), room],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                pass_fds=[listening.fileno()],
                start_new_session=True,
                env=self._environment,
            )

    def run(self, words: Sequence[str], output: Path, timeout_secs: float) -> int:
        """Runs what `python -m` would, in the clone, and returns its exit status."""
        with output.open("wb") as file:
            fork = Fork(self._path, words, file.fileno(), self._environment)
        return fork.wait(timeout_secs)


@functools.cache
def server_with(**environment: str) -> ForkServer:
    """Returns this process's server with some variables; starts it the first time."""
    return ForkServer(environment)


def _import_all() -> None:
    """Imports what launchers and roles would, but for their main modules."""
    from rl_sync.cluster.parallel_imports import loading

    with loading():
        from rl_sync.weights import storage

        storage.load_orbax()


def _next_fork(listening: socket.socket) -> tuple[list[str], dict[str, str]]:
    """Serves until standard input closes; returns only in forks, each with its request."""
    wake, waker = socket.socketpair()
    for one in (wake, waker):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    starters: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        for one in (listening, wake, 0):
            selector.register(one, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if 0 in ready:
                shutil.rmtree(os.path.dirname(os.environ[SERVER]), ignore_errors=True)
                os._exit(0)  # Forks are killed.
            if wake in ready:
                wake.recv(1 << 10)
                _reap(starters)
            if listening not in ready:
                continue
            connection, _ = listening.accept()
            data, (lifeline, output), _, _ = socket.recv_fds(connection, _LENGTH.size, 2)
            (length,) = _LENGTH.unpack(data)
            request = json.loads(connection.recv(length, socket.MSG_WAITALL))
            server = os.getpid()
            with warnings.catch_warnings(action="ignore"):  # JAX and Python warn of their threads.
                pid = os.fork()
            if pid == 0:
                break
            os.setpgid(pid, pid)  # Both do, since either may be first.
            os.close(lifeline)
            os.close(output)
            connection.sendall(_NUMBER.pack(pid))
            starters[pid] = connection
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for one in (listening, wake, waker, connection, *starters.values()):
        one.close()
    for descriptor, number in ((lifeline, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, number)
    os.close(lifeline)
    os.close(output)
    words, environment = request
    return words, environment


def _reap(starters: dict[int, socket.socket]) -> None:
    """Says to starters how their forks ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        with contextlib.suppress(BrokenPipeError), starters.pop(pid) as connection:
            connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _fork_roles() -> None:
    """Lets a launcher in this process fork its roles from the server, too."""
    from rl_sync.launcher.processes.supervisor import RoleProcess

    start = RoleProcess.start

    def fork(
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        directory: Path | None = None,
    ) -> RoleProcess:
        if list(command[:2]) != [sys.executable, "-m"] or directory is not None:  # Elsewhere.
            return start(name, command, log, environment, directory)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            variables = {**os.environ, **environment}
            one = Fork(os.environ[SERVER], command[2:], output.fileno(), variables)
        return RoleProcess(name, log, one)  # type: ignore[arg-type]

    RoleProcess.start = fork  # type: ignore[method-assign, assignment]


def _show(words: Sequence[str]) -> None:
    """Shows the command line of a fork to others, in place of the server's."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
    shown = "\0".join([sys.executable, "-m", *words]).encode()[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, shown, len(shown))


def main() -> None:
    if sys.argv[1] == "launcher":
        _fork_roles()
        sys.argv = sys.argv[1:]
        runpy.run_module("launcher", run_name="__main__", alter_sys=True)
        return
    listening = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    gc.collect()
    gc.freeze()  # Looking for garbage in it would copy its pages in forks.
    words, environment = _next_fork(listening)
    os.environ.clear()
    os.environ.update(environment)
    logging.root.handlers.clear()  # Roles set it up before they import what does so too.
    _show(words)
    if words[0] == "launcher":
        _fork_roles()
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
