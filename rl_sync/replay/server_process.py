"""The process of a replay server, a child of this process: start and stop."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import get_args

from rl_sync.addresses import address_of
from rl_sync.isolation.process_limits import signal_group
from rl_sync.replay import tables as table_specs
from rl_sync.replay.replay_interface import Backend
from rl_sync.replay.reverb_server import PORT_TAKEN, REFUSED
from rl_sync.replay.tables import TableSpec
from rl_sync.spelling import require_one_of

STOP_TIMEOUT_SECS = 10.0
_LOG_LINES = 15


class ReplayServerError(RuntimeError):
    """Raised if a replay server cannot be started; the message says why, and what to do."""


class ServerProcess:
    """A replay server that is a child of this process.

    It runs while its standard input is open. So it ends when this process ends, in any way.

    Attributes:
      popen: the child, in a session and a process group of its own.
      log_path: the file of its output.
    """

    def __init__(
        self,
        backend: Backend,
        host: str,
        port: int,
        popen: subprocess.Popen[bytes],
        log_path: pathlib.Path,
    ) -> None:
        self.popen = popen
        self.log_path = log_path
        self._backend = backend
        self._host, self._port = host, port
        self._ready = threading.Event()
        self._since = time.monotonic()
        self._reader = threading.Thread(target=self._read_output, name="replay-server", daemon=True)
        self._reader.start()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """The `host:port` for clients; with port 0, known once the server is ready."""
        return address_of(self._host, self._port)

    @property
    def port(self) -> int:
        """The port; with port 0, known once the server is ready."""
        return self._port

    def wait_ready(self, timeout_secs: float) -> None:
        """Waits until the server serves.

        Raises:
          ReplayServerError: the server has ended, or is not ready in that time.
        """
        deadline = time.monotonic() + timeout_secs
        while not self._ready.wait(0.05):
            if self.popen.poll() is not None:
                self._reader.join(1.0)
                if self._ready.is_set():
                    return
                raise ReplayServerError(self._why_it_ended())
            if time.monotonic() >= deadline:
                waited_secs = time.monotonic() - self._since
                raise ReplayServerError(
                    f"The {self._backend} replay server did not serve within {waited_secs:.0f} s."
                    " The first start on a machine downloads its environment (some 400 MB)."
                    + self._log_tail()
                )

    @property
    def is_ready(self) -> bool:
        """True once the server has served."""
        return self._ready.is_set()

    @property
    def backend(self) -> Backend:
        """The kind of server."""
        return self._backend

    @property
    def cannot_be_had(self) -> bool:
        """True if the server ended before it was ready, because its environment does not work."""
        refusals = (None, PORT_TAKEN, REFUSED)
        return not self._ready.is_set() and self.popen.poll() not in refusals

    def poll(self) -> int | None:
        """Returns the exit status of the server, or None while it runs."""
        return self.popen.poll()

    def stop(self, timeout_secs: float = STOP_TIMEOUT_SECS) -> None:
        """Ends the server, cleanly if that takes no longer than the time-out."""
        assert self.popen.stdin is not None
        with contextlib.suppress(OSError):
            self.popen.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                signal_group(self.popen.pid, number)
            try:
                self.popen.wait(timeout_secs)
                break
            except subprocess.TimeoutExpired:
                continue
        self._reader.join(timeout_secs)

    def _read_output(self) -> None:
        """Reads the ready line from the server's output, and drains the rest."""
        assert self.popen.stdout is not None
        with self.popen.stdout as output:
            for line in output:
                if not self._ready.is_set() and line.startswith(b"{"):
                    self._port = json.loads(line)["port"]
                    self._ready.set()

    def _why_it_ended(self) -> str:
        status = self.popen.returncode
        if status == PORT_TAKEN:
            return (
                f"The replay server cannot listen on port {self._port} of {self._host}: another"
                " process does."
                " Choose another port, or 0 for any free one."
            )
        advice = ""
        if self._backend == "reverb" and status != REFUSED:
            advice = (
                " It needs uv, and an environment of its own with Python 3.11, dm-reverb and"
                " TensorFlow, for which it downloads packages when it first starts (Linux on"
                " x86-64 only). Where that is not possible, use"
                " --config.replay.backend=embedded."
            )
        return (
            f"The {self._backend} replay server ended with status {status} before it served."
            + advice
            + self._log_tail()
        )

    def _log_tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        if not lines:
            return f" Its log, {self.log_path}, is empty."
        return "\n".join([f" The end of its log, {self.log_path}:", *(f"  {x}" for x in lines)])


def start_server(
    backend: Backend,
    tables: Sequence[TableSpec],
    port: int,
    *,
    host: str = "127.0.0.1",
    log_path: str | os.PathLike[str],
    checkpoints: str | os.PathLike[str] | None = None,
    start_timeout_secs: float | None = None,
) -> ServerProcess:
    """Starts a replay server.

    Args:
      backend: `reverb` for the Reverb server, in an environment that uv makes; `embedded` for our
        own server, in this process's environment.
      tables: its tables.
      port: the port; 0 for any free port.
      host: the address of this machine to listen on.
      log_path: the file for its output.
      checkpoints: directory of its checkpoints, of which it restores the newest; None for none.
      start_timeout_secs: maximum wait until it serves. None returns immediately; the caller must
        then call `ServerProcess.wait_ready`.

    Raises:
      ValueError: the backend is unknown, or the tables are not valid.
      ReplayServerError: it cannot be started.
    """
    table_specs.check_names(tables)
    command = [*_interpreter(backend), "--port", str(port), "--host", host]
    command += ["--tables", table_specs.to_json(tables)]
    if checkpoints is not None:
        pathlib.Path(checkpoints).mkdir(parents=True, exist_ok=True)
        command += ["--checkpoints", os.fspath(checkpoints)]
    log = pathlib.Path(log_path)
    server = ServerProcess(backend, host, port, _child(backend, command, log), log)
    if start_timeout_secs is not None:
        try:
            server.wait_ready(start_timeout_secs)
        except BaseException:
            server.stop()
            raise
    return server


def _child(backend: Backend, command: list[str], log: pathlib.Path) -> subprocess.Popen[bytes]:
    """Starts a command that ends with its standard input, and writes its errors to a file."""
    # The server's environment must not find packages of ours.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as errors:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            env=environment if backend == "reverb" else None,
        )


def _interpreter(backend: Backend) -> list[str]:
    """Returns the command that runs the server, without its arguments."""
    require_one_of("replay.backend", backend, get_args(Backend))
    if backend == "embedded":
        return [sys.executable, "-m", "rl_sync.replay.embedded_server"]
    script = str(pathlib.Path(__file__).with_name("reverb_server.py"))
    uv = _find_uv()
    offline = ["--offline"] if _is_installed(uv, script) else []
    return [uv, "run", "--quiet", *offline, "--script", script]


def _is_installed(uv: str, script: str) -> bool:
    """Says whether the script's environment exists, or can be made without the network.

    Without this check, uv would ask the package index for versions at every start, and a machine
    without network could not use an environment that it already has.
    """
    try:
        check = subprocess.run(
            [uv, "sync", "--offline", "--script", script], capture_output=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return False
    return check.returncode == 0


def _find_uv() -> str:
    try:
        import uv

        return os.fspath(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise ReplayServerError(
            "The Reverb replay server runs in an environment of its own, which uv makes, and uv is"
            " not installed: `pip install uv`, or use --config.replay.backend=embedded."
        )
    return found
